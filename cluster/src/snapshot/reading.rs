//! The snapshot's readers over bytes at hand: see `crate::reading`.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::chunks::{ChunkReader, ChunkWriter, Totals};
use super::manifest::ManifestV3;

/// A manifest: `None` when it is refused, else what this build writes for it.
#[must_use]
pub fn manifest(bytes: &[u8]) -> Option<Vec<u8>> {
    let manifest = ManifestV3::decode(bytes).ok()?;
    let _ = manifest.head();
    manifest.encode().ok()
}

/// A chunk's key and value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A store of chunks that lasts as long as this value.
pub struct Chunks(Arc<sled::Db>);

impl Chunks {
    /// An empty one.
    ///
    /// # Errors
    /// Of the disk.
    pub fn temporary() -> io::Result<Self> {
        Ok(Self(Arc::new(sled::Config::new().temporary(true).flush_every_ms(None).open()?)))
    }

    /// What `state` is cut into: keys and values, and what they come to (how many, bytes, sum).
    ///
    /// # Errors
    /// Of the disk.
    pub fn cut(&self, state: &[u8]) -> io::Result<(Vec<Pair>, (u64, u64, u32))> {
        self.0.clear()?;
        let mut writer = ChunkWriter::new(&self.0);
        writer.write_all(state)?;
        let Totals { chunks, bytes, crc32c } = writer.finish()?;
        let pairs = self.0.iter().map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())));
        Ok((pairs.collect::<Result<_, _>>()?, (chunks, bytes, crc32c)))
    }

    /// Puts chunks together again.
    ///
    /// # Errors
    /// `InvalidData`, unless they come to the totals.
    pub fn joined(&self, pairs: &[(&[u8], &[u8])], totals: (u64, u64, u32)) -> io::Result<Vec<u8>> {
        self.0.clear()?;
        for (key, value) in pairs {
            self.0.insert(*key, *value)?;
        }
        let (chunks, bytes, crc32c) = totals;
        let mut state = Vec::new();
        ChunkReader::new(Arc::clone(&self.0), Totals { chunks, bytes, crc32c }).read_to_end(&mut state)?;
        Ok(state)
    }
}
