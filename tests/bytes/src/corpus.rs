//! The corpus: `corpus/TARGET/NAME`, samples and what was found. A sample is what an encoder writes today, kept as a file,
//! so that an encoder that changes is seen, and what older builds wrote is read for ever.

use std::fs;
use std::path::PathBuf;

use crate::Target;

/// An input, and the name of its file.
pub struct Item {
    /// For people.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
}

impl Item {
    /// It once broke something: it may be refused.
    pub fn is_finding(&self) -> bool {
        self.name.starts_with("found-")
    }
}

/// A target's folder.
pub fn folder(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// A target's items, in the order of their names.
pub fn items(target: &Target) -> Vec<Item> {
    let folder = folder(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut items: Vec<Item> = files
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            Item { name, bytes: fs::read(entry.path()).unwrap() }
        })
        .collect();
    items.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!items.is_empty(), "{} is empty", folder.display());
    items
}
