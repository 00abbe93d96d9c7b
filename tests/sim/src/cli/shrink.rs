//! The same failure with less.
//!
//! Greedy: of the smaller cases the first that still breaks the law is taken, and so on from there, until none does or
//! the limits are reached. What comes out fails; that nothing smaller would is not promised.

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk<T> {
    /// The smallest that was found; fails.
    pub case: T,
    /// How often a smaller one was taken.
    pub steps: u64,
    /// How many were tried.
    pub tries: u64,
}

/// Shrinks `case`, which fails. `smaller` says what is smaller, the most promising first, and is asked anew after each step; `fails` tries one;
/// `go_on` is asked before each try, with the number of tries so far.
pub fn shrink<T>(
    case: T,
    smaller: impl Fn(&T) -> Box<dyn Iterator<Item = T> + '_>,
    mut fails: impl FnMut(&T) -> bool,
    mut go_on: impl FnMut(u64) -> bool,
) -> Shrunk<T> {
    let (mut case, mut steps, mut tries) = (case, 0, 0);
    loop {
        let mut taken = None;
        for next in smaller(&case) {
            if !go_on(tries) {
                break;
            }
            tries += 1;
            if fails(&next) {
                taken = Some(next);
                break;
            }
        }
        let Some(next) = taken else { return Shrunk { case, steps, tries } };
        case = next;
        steps += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Halves first, then single elements, cut out.
    #[expect(clippy::ptr_arg, reason = "what `shrink` calls it with")]
    fn smaller(case: &Vec<u32>) -> Box<dyn Iterator<Item = Vec<u32>> + '_> {
        let half = case.len() / 2;
        let mut found = vec![case[half..].to_vec(), case[..half].to_vec()];
        found.extend((0..case.len()).map(|at| [&case[..at], &case[at + 1..]].concat()));
        found.retain(|next| next.len() < case.len());
        Box::new(found.into_iter())
    }

    #[test]
    fn what_matters_remains() {
        let fails = |case: &Vec<u32>| case.contains(&3) && case.contains(&17);
        let shrunk = shrink((0..100).collect(), smaller, fails, |_| true);
        assert_eq!(shrunk.case, [3, 17]);
        assert!(shrunk.tries < 600, "{shrunk:?}");
    }

    #[test]
    fn what_cannot_be_smaller_stays() {
        let shrunk = shrink(vec![1, 2], smaller, |_| false, |_| true);
        assert_eq!(shrunk, Shrunk { case: vec![1, 2], steps: 0, tries: 4 });
        assert_eq!(shrink(vec![1, 2], smaller, |_| true, |_| true).case, [0; 0], "nothing matters");
    }

    #[test]
    fn it_ends_at_its_limits_with_the_smallest_so_far() {
        let mut tries = 0;
        let fails = |case: &Vec<u32>| {
            tries += 1;
            case.contains(&3)
        };
        let shrunk = shrink((0..100).collect(), smaller, fails, |tried| tried < 3);
        assert_eq!((shrunk.tries, tries), (3, 3));
        assert!(shrunk.case.contains(&3) && shrunk.case.len() < 100);
    }
}
