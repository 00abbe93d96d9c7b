//! Mutants of bytes: what disks, networks, truncated writes and foreign programs make of a format, and what a length or a
//! number may be at its worst.
//!
//! Everything is decided by the dice: the same seed and number give the same mutant of the same corpus. A mutant has at
//! most [`BYTES_MAX`] bytes.

use checker::Dice;

use crate::text;

/// Most bytes of a mutant: above the greatest body (1 MiB) and below the readers' own frame limits.
pub const BYTES_MAX: usize = 2 * 1024 * 1024;
/// Most mutations of one mutant.
const STEPS_MAX: u64 = 4;

/// What the bytes are, as far as mutations care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Fields, lengths and varints.
    Binary,
    /// Lines, numbers and names.
    Text,
    /// Text with JSON in it.
    Json,
}

/// Bytes that end ranges, mark varints (bincode's 251..=253) or continue them (LEB128).
const BYTES: [u8; 14] = [0, 1, 2, 0x7f, 0x80, 0x81, 250, 251, 252, 253, 254, 255, b'\n', b' '];
/// Numbers at the edges of what a reader may do with them.
const NUMBERS: [u64; 16] = [
    0,
    1,
    0x7f,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_fff0,
    0xffff_ffff,
    0x1_0000_0000,
    (1 << 53) - 1,
    1 << 53,
    i64::MAX as u64,
    u64::MAX,
];

/// Choices a mutation makes.
pub struct Chooser<'a>(pub &'a mut Dice);

impl Chooser<'_> {
    /// Below `end`; 0 if there is nothing below.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { self.0.in_range(0..=end as u64 - 1) as usize }
    }

    /// One of them.
    pub fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// A place within `bytes`: mostly near the start, where the structure is.
    fn place(&mut self, bytes: &[u8]) -> usize {
        let end = if self.0.percent(40) { bytes.len().min(64) } else { bytes.len() };
        self.below(end)
    }

    /// A range within `bytes`, mostly short.
    fn range(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let start = self.place(bytes);
        let longest = bytes.len() - start;
        let length = if self.0.percent(80) { self.below(longest.min(32) + 1) } else { self.below(longest + 1) };
        start..start + length
    }
}

/// A mutant of one item of the corpus.
pub fn mutant(dice: &mut Dice, form: Form, corpus: &[Vec<u8>], mend: Option<fn(&mut Vec<u8>)>) -> Vec<u8> {
    let mut choose = Chooser(dice);
    let mut bytes = corpus[choose.below(corpus.len())].clone();
    // One step alone is what gets deepest.
    let steps = if choose.0.percent(50) { 1 } else { choose.0.in_range(2..=STEPS_MAX) };
    for _ in 0..steps {
        let is_text = form != Form::Binary && choose.0.percent(70);
        if is_text {
            text::step(&mut choose, form, &mut bytes)
        } else {
            step(&mut choose, &mut bytes, corpus)
        }
        bytes.truncate(BYTES_MAX);
    }
    if let Some(mend) = mend.filter(|_| choose.0.percent(75)) {
        mend(&mut bytes);
    }
    bytes
}

/// One mutation that knows no form.
fn step(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    match choose.below(15) {
        0 | 1 => {
            let at = choose.place(bytes);
            let bit = choose.below(8);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        2 | 3 => {
            let at = choose.place(bytes);
            let value = choose.of(&BYTES);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        4 => bytes.truncate(choose.below(bytes.len() + 1)),
        5 => {
            let length = choose.below(40);
            let value = choose.of(&BYTES);
            bytes.extend(std::iter::repeat_n(value, length));
        }
        6 => splice(choose, bytes, corpus),
        7 => {
            let range = choose.range(bytes);
            let copy = bytes[range.clone()].to_vec();
            let at = choose.below(bytes.len() + 1);
            bytes.splice(at..at, copy);
        }
        8 => {
            let range = choose.range(bytes);
            bytes.drain(range);
        }
        9 => {
            let range = choose.range(bytes);
            let moved: Vec<u8> = bytes.drain(range).collect();
            let at = choose.below(bytes.len() + 1);
            bytes.splice(at..at, moved);
        }
        10 => {
            let range = choose.range(bytes);
            let value = choose.of(&BYTES);
            bytes[range].fill(value);
        }
        11 => fixed_number(choose, bytes),
        12 => near_number(choose, bytes),
        13 => repeat(choose, bytes),
        _ => varint(choose, bytes),
    }
}

/// The start of one item and the end of another.
fn splice(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let other = &corpus[choose.below(corpus.len())];
    let from = choose.below(other.len() + 1);
    bytes.truncate(choose.below(bytes.len() + 1));
    bytes.extend_from_slice(&other[from..]);
}

/// A few bytes come again and again: lists of many, and whatever holds itself, deep.
fn repeat(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>) {
    let at = choose.place(bytes);
    let length = choose.of(&[1, 2, 3, 5, 8]).min(bytes.len() - at);
    let copies = if choose.0.percent(3) { 100_000 } else { choose.of(&[2, 5, 20, 300, 2_000]) };
    let run = bytes[at..at + length].repeat(copies);
    bytes.splice(at..at, run);
}

/// An integer of 2, 4 or 8 bytes, in either order, becomes an extreme.
fn fixed_number(choose: &mut Chooser<'_>, bytes: &mut [u8]) {
    let width = choose.of(&[2, 4, 8]);
    let at = choose.place(bytes);
    let number = choose.of(&NUMBERS);
    let Some(slot) = bytes.get_mut(at..at + width) else { return };
    if choose.0.percent(70) {
        slot.copy_from_slice(&number.to_le_bytes()[..width]);
    } else {
        slot.copy_from_slice(&number.to_be_bytes()[8 - width..]);
    }
}

/// An integer of 1, 2 or 4 bytes becomes a little more or less: lengths that are off by one.
fn near_number(choose: &mut Chooser<'_>, bytes: &mut [u8]) {
    let width = choose.of(&[1, 2, 4]);
    let at = choose.place(bytes);
    let by = choose.below(9) as u64;
    let Some(slot) = bytes.get_mut(at..at + width) else { return };
    let mut whole = [0; 8];
    whole[..width].copy_from_slice(slot);
    let near = u64::from_le_bytes(whole).wrapping_add(by).wrapping_sub(4);
    slot.copy_from_slice(&near.to_le_bytes()[..width]);
}

/// A varint, of either kind that is used here, takes a byte's place.
fn varint(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>) {
    let at = choose.place(bytes);
    let number = choose.of(&NUMBERS);
    let written = if choose.0.percent(60) { marked(number) } else { leb128(number) };
    let end = (at + 1).min(bytes.len());
    bytes.splice(at.min(end)..end, written);
}

/// bincode's: a marker and 2, 4 or 8 bytes.
fn marked(number: u64) -> Vec<u8> {
    let (marker, width) = match number {
        0..=250 => return vec![number as u8],
        251..=0xffff => (251, 2),
        0x1_0000..=0xffff_ffff => (252, 4),
        _ => (253, 8),
    };
    let mut written = vec![marker];
    written.extend_from_slice(&number.to_le_bytes()[..width]);
    written
}

/// The keyspace's.
pub(crate) fn leb128(mut number: u64) -> Vec<u8> {
    let mut written = Vec::new();
    while number >= 0x80 {
        written.push(number as u8 | 0x80);
        number >>= 7;
    }
    written.push(number as u8);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_dice_give_the_same_mutant_and_others_another() {
        let corpus = vec![b"{\"key\":\"a\",\"ttl_ms\":30000}".to_vec(), (0..200).collect()];
        for form in [Form::Binary, Form::Text, Form::Json] {
            let make = |n| mutant(&mut Dice::new(1, n), form, &corpus, None);
            let mutants: std::collections::BTreeSet<Vec<u8>> = (0..500).map(make).collect();
            assert!(mutants.len() > 400, "{form:?}: only {} differ", mutants.len());
            assert!((0..50).all(|n| make(n) == make(n)));
        }
    }

    #[test]
    fn the_empty_input_is_mutated_too() {
        for n in 0..2_000 {
            let form = [Form::Binary, Form::Text, Form::Json][n as usize % 3];
            let _ = mutant(&mut Dice::new(3, n), form, &[Vec::new()], None);
        }
    }
}
