//! A state's bytes as chunks in a sled tree, and back.
//!
//! Key: the chunk's number, u64 big endian, from 0 without a gap. Value: CRC32C (little endian) of key and data, then
//! the data: [`CHUNK_BYTES`], the last one shorter. Far below the size at which sled moves values into files of their
//! own, which it never syncs.

use std::io::{self, Read, Write};
use std::sync::Arc;

use sled::IVec;

/// Data in a chunk, bytes.
const CHUNK_BYTES: usize = 4096;
/// Length of the checksum before the data.
const CRC_LEN: usize = 4;

/// What all chunks come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// How many chunks.
    pub chunks: u64,
    /// How many bytes of data.
    pub bytes: u64,
    /// CRC32C of all data.
    pub crc32c: u32,
}

impl Totals {
    fn add(&mut self, data: &[u8]) {
        self.chunks += 1;
        self.bytes += data.len() as u64;
        self.crc32c = crc32c::crc32c_append(self.crc32c, data);
    }
}

fn chunk_crc(key: &[u8], data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), data)
}

/// Cuts what is written to it into chunks.
pub(super) struct ChunkWriter<'a> {
    db: &'a sled::Db,
    totals: Totals,
    /// Checksum and data of the chunk being filled.
    value: Vec<u8>,
    fault: Option<sled::Error>,
}

impl<'a> ChunkWriter<'a> {
    pub(super) fn new(db: &'a sled::Db) -> Self {
        let mut value = Vec::with_capacity(CRC_LEN + CHUNK_BYTES);
        value.resize(CRC_LEN, 0);
        Self { db, totals: Totals::default(), value, fault: None }
    }

    /// Writes the last chunk. A fault of sled is told apart from one of whoever wrote.
    pub(super) fn finish(mut self) -> Result<Totals, sled::Error> {
        if self.fault.is_none() && self.value.len() > CRC_LEN {
            self.put();
        }
        self.fault.map_or(Ok(self.totals), Err)
    }

    fn put(&mut self) {
        let key = self.totals.chunks.to_be_bytes();
        let (crc, data) = self.value.split_at_mut(CRC_LEN);
        crc.copy_from_slice(&chunk_crc(&key, data).to_le_bytes());
        self.totals.add(data);
        self.fault = self.db.insert(key, self.value.as_slice()).err();
        self.value.truncate(CRC_LEN);
    }
}

impl Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.fault.is_some() {
            return Err(io::Error::other("the snapshot's store failed"));
        }
        let taken = bytes.len().min(CRC_LEN + CHUNK_BYTES - self.value.len());
        self.value.extend_from_slice(&bytes[..taken]);
        if self.value.len() == CRC_LEN + CHUNK_BYTES {
            self.put();
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Puts the chunks together again. Hands out nothing of a chunk that is not what was written, and not the last chunk
/// unless all came to what the manifest says.
pub(super) struct ChunkReader {
    /// Keeps the tree open while it is read.
    _db: Arc<sled::Db>,
    chunks: sled::Iter,
    expected: Totals,
    seen: Totals,
    value: IVec,
    /// How much of `value` was handed out.
    taken: usize,
}

impl ChunkReader {
    pub(super) fn new(db: Arc<sled::Db>, expected: Totals) -> Self {
        let chunks = db.iter();
        Self { _db: db, chunks, expected, seen: Totals::default(), value: IVec::default(), taken: 0 }
    }

    /// Fetches and checks the next chunk; false at the end.
    fn next_chunk(&mut self) -> io::Result<bool> {
        let number = self.seen.chunks;
        let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("chunk {number}: {what}"));
        let Some(entry) = self.chunks.next() else {
            return match number {
                // The last chunk was checked before it was handed out; of none, the totals are to be checked here.
                _ if number != self.expected.chunks => Err(damaged("is missing")),
                _ if self.seen != self.expected => Err(damaged("is not there, and others were written")),
                _ => Ok(false),
            };
        };
        let (key, value) = entry.map_err(io::Error::from)?;
        if key != number.to_be_bytes() || number >= self.expected.chunks {
            return Err(damaged("another stands in its place"));
        }
        let Some((crc, data)) = value.split_first_chunk::<CRC_LEN>() else {
            return Err(damaged("is cut short"));
        };
        if u32::from_le_bytes(*crc) != chunk_crc(&key, data) {
            return Err(damaged("does not match its checksum"));
        }
        self.seen.add(data);
        if self.seen.chunks == self.expected.chunks && self.seen != self.expected {
            return Err(damaged("ends other bytes than were written"));
        }
        self.value = value;
        self.taken = CRC_LEN;
        Ok(true)
    }
}

impl Read for ChunkReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while self.taken >= self.value.len() {
            if !self.next_chunk()? {
                return Ok(0);
            }
        }
        let length = into.len().min(self.value.len() - self.taken);
        into[..length].copy_from_slice(&self.value[self.taken..self.taken + length]);
        self.taken += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn database() -> (tempfile::TempDir, Arc<sled::Db>, Totals) {
        let dir = tempfile::TempDir::new().unwrap();
        let db = sled::Config::new().path(dir.path()).flush_every_ms(None).open().unwrap();
        let mut writer = ChunkWriter::new(&db);
        writer.write_all(&[7; 3 * CHUNK_BYTES + 5]).unwrap();
        let totals = writer.finish().unwrap();
        (dir, Arc::new(db), totals)
    }

    fn read(db: &Arc<sled::Db>, totals: Totals) -> io::Result<usize> {
        let mut bytes = Vec::new();
        ChunkReader::new(Arc::clone(db), totals).read_to_end(&mut bytes)
    }

    #[test]
    fn chunks_are_in_order_and_come_to_the_totals() {
        let (_dir, db, totals) = database();
        assert_eq!((totals.chunks, totals.bytes), (4, 3 * 4096 + 5));
        assert_eq!(totals.crc32c, crc32c::crc32c(&[7; 3 * CHUNK_BYTES + 5]));
        assert_eq!(read(&db, totals).unwrap(), 3 * CHUNK_BYTES + 5);
    }

    #[test]
    fn no_chunks_are_no_bytes() {
        let (_dir, db, _) = database();
        db.clear().unwrap();
        assert_eq!(read(&db, Totals::default()).unwrap(), 0);
        for totals in [Totals { bytes: 1, ..Totals::default() }, Totals { crc32c: 1, ..Totals::default() }] {
            assert_eq!(read(&db, totals).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn what_is_not_as_written_is_never_handed_out() {
        let key = |number: u64| number.to_be_bytes();
        let value = move |db: &sled::Db, number| db.get(key(number)).unwrap().unwrap();
        type Damage = Box<dyn Fn(&sled::Db)>;
        let cases: Vec<(&str, Damage)> = vec![
            ("chunk 1: another stands in its place", Box::new(move |db| drop(db.remove(key(1)).unwrap()))),
            ("chunk 3: is missing", Box::new(move |db| drop(db.remove(key(3)).unwrap()))),
            ("chunk 4: another stands in its place", Box::new(move |db| drop(db.insert(key(4), b"1234").unwrap()))),
            ("chunk 0: is cut short", Box::new(move |db| drop(db.insert(key(0), b"123").unwrap()))),
            (
                "chunk 2: does not match its checksum",
                Box::new(move |db| drop(db.insert(key(2), value(db, 1)).unwrap())),
            ),
            (
                "chunk 3: ends other bytes than were written",
                Box::new(move |db| {
                    let crc = chunk_crc(&key(3), b"8").to_le_bytes();
                    drop(db.insert(key(3), [crc.as_slice(), b"8"].concat()).unwrap());
                }),
            ),
        ];
        for (expected, damage) in cases {
            let (_dir, db, totals) = database();
            damage(&db);
            let error = read(&db, totals).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::InvalidData, expected));
        }
    }
}
