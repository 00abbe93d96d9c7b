//! Columns of text, aligned to the left. Widths only grow, so that a table may be printed page by page.

/// Two spaces between columns.
const GAP: &str = "  ";

/// Column widths so far, in characters.
#[derive(Debug, Default)]
pub struct Table {
    widths: Vec<usize>,
}

impl Table {
    /// These rows, each a line.
    pub fn page<const N: usize>(&mut self, rows: &[[String; N]]) -> String {
        self.widths.resize(N.max(self.widths.len()), 0);
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for row in rows {
            let mut line = String::new();
            for (width, cell) in self.widths.iter().zip(row) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width - cell.chars().count()));
                line.push_str(GAP);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A card: names and what they are; `None` leaves the line out.
pub fn card<const N: usize>(lines: [(&str, Option<String>); N]) -> String {
    let rows: Vec<[String; 2]> =
        lines.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?])).collect();
    Table::default().page(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_over_pages() {
        let row = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        let mut table = Table::default();
        assert_eq!(table.page(&[row("KEY", "HELD"), row("ключ", "yes")]), "KEY   HELD\nключ  yes\n");
        assert_eq!(table.page(&[row("k", "no")]), "k     no\n");
    }

    #[test]
    fn a_card_leaves_out_what_is_not() {
        assert_eq!(
            card([("key", Some("k".into())), ("note", None), ("fence", Some("7".into()))]),
            "key    k\nfence  7\n"
        );
    }
}
