//! What a simulated disk holds, and what of it survives a power cut.

use std::collections::{BTreeMap, BTreeSet};

/// What is written or lost as one.
pub const SECTOR: usize = 512;

/// What a power cut took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Unsynced sectors that did not survive.
    pub sectors: u64,
    /// Files of which some unsynced sectors survived and others did not: torn writes.
    pub torn: u64,
    /// Unsynced names (made, renamed, removed) that did not survive.
    pub names: u64,
}

#[derive(Clone, Default)]
pub(super) struct Content {
    /// As read.
    pub bytes: Vec<u8>,
    /// As it would be after a power cut if nothing unsynced survived.
    pub synced: Vec<u8>,
    /// Sectors written since the last sync.
    pub dirty: BTreeSet<usize>,
}

/// An unsynced change of a directory.
#[derive(Clone)]
pub(super) enum Naming {
    Create(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Clone, Default)]
pub(super) struct Directory {
    /// The directory's own name is synced.
    pub synced: bool,
    pub names: BTreeMap<String, u64>,
    pub durable: BTreeMap<String, u64>,
    pub unsynced: Vec<Naming>,
}

/// splitmix64: enough to choose what survives, and the same everywhere.
pub(super) struct Chance(pub u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

impl Content {
    pub fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            self.dirty.extend(offset / SECTOR..=(end - 1) / SECTOR);
        }
    }

    pub fn sync(&mut self) {
        self.synced.resize(self.bytes.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            self.keep(sector);
        }
    }

    fn keep(&mut self, sector: usize) {
        let range = sector * SECTOR..((sector + 1) * SECTOR).min(self.bytes.len());
        if self.synced.len() < range.end {
            self.synced.resize(range.end, 0);
        }
        self.synced[range.clone()].copy_from_slice(&self.bytes[range]);
    }

    pub fn cut(&mut self, chance: &mut Chance, losses: &mut Losses) {
        // Now and then all or nothing survives: coins for each sector almost never do that.
        let whole = match chance.next() % 4 {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        };
        let (mut kept, mut lost) = (0, 0);
        for sector in std::mem::take(&mut self.dirty) {
            if whole.unwrap_or_else(|| chance.coin()) {
                self.keep(sector);
                kept += 1;
            } else {
                lost += 1;
            }
        }
        losses.sectors += lost;
        losses.torn += u64::from(kept > 0 && lost > 0);
        self.bytes = self.synced.clone();
    }
}

impl Directory {
    fn apply(names: &mut BTreeMap<String, u64>, naming: &Naming) {
        match naming {
            Naming::Create(name, file) => {
                names.insert(name.clone(), *file);
            }
            Naming::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Naming::Remove(name) => {
                names.remove(name);
            }
        }
    }

    pub fn change(&mut self, naming: Naming) {
        Self::apply(&mut self.names, &naming);
        self.unsynced.push(naming);
    }

    pub fn sync(&mut self) {
        self.unsynced.clear();
        self.durable = self.names.clone();
    }

    pub fn cut(&mut self, chance: &mut Chance, losses: &mut Losses) {
        for naming in std::mem::take(&mut self.unsynced) {
            if chance.coin() {
                Self::apply(&mut self.durable, &naming);
            } else {
                losses.names += 1;
            }
        }
        self.names = self.durable.clone();
        self.synced = true;
    }
}
