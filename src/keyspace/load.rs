//! How a keyspace is read: the inverse of [`super::save`], to the last byte.
//!
//! Whatever the bytes are, this ends with a keyspace or a [`LoadError`]: no panic, and no allocation that a length in
//! the bytes could drive beyond [`TEXT_BYTES_MAX`] at a time. Accepted is only the one form that `save` writes: numbers
//! of least length, known flags, keys in strict order, fences within the counter.

use std::io::{BufReader, Read};
use std::sync::Arc;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::{LoadError, Position, Stamp};

use super::grants::FENCE_END;
use super::lease::{End, Grant, Last, Lease};
use super::record::{Kind, Record};
use super::save::{MAGIC, VERSION, end, flag, kind};
use super::table::Table;
use super::{Key, Keyspace, LeaseOptions, TokenHash};

/// No string is longer: each came in a log entry, and an entry is at most 1 MiB.
const TEXT_BYTES_MAX: u64 = 1024 * 1024;

const BUFFER_BYTES: usize = 64 * 1024;

/// Reads the whole state.
pub(super) fn load(source: &mut dyn Read) -> Result<Keyspace, LoadError> {
    let mut form = Form { source: BufReader::with_capacity(BUFFER_BYTES, source), fence: FENCE_END };
    if form.bytes::<{ MAGIC.len() }>()? != MAGIC {
        return Err(wrong("this is no keyspace"));
    }
    let version = form.number()?;
    if version != VERSION {
        return Err(LoadError::Form(format!("keyspace of version {version}, this build reads version {VERSION}")));
    }
    let fence = form.fence()?;
    form.fence = fence;
    let longest_ttl_ms = form.number()?;
    let keys = form.number()?;
    let mut before: Option<Key> = None;
    let table = Table::of((0..keys).map(|_| {
        let key: Key = form.text()?;
        if before.replace(Key::clone(&key)).is_some_and(|before| before >= key) {
            return Err(wrong("keys out of order"));
        }
        Ok((key, form.record()?))
    }))?;
    form.nothing_more()?;
    let fence = if planted::has(Bug::FenceResetBySnapshot) { 0 } else { fence };
    Ok(Keyspace { table, fence, longest_ttl_ms, ..Keyspace::default() })
}

fn wrong(what: &str) -> LoadError {
    LoadError::Form(what.to_owned())
}

struct Form<'a> {
    source: BufReader<&'a mut dyn Read>,
    /// No fence is greater.
    fence: u64,
}

impl Form<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn nothing_more(&mut self) -> Result<(), LoadError> {
        match self.source.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(wrong("bytes after the last key")),
        }
    }

    fn number(&mut self) -> Result<u64, LoadError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.bytes()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits || (byte == 0 && shift > 0) {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(wrong("a number that is too long"))
    }

    fn stamp(&mut self) -> Result<Stamp, LoadError> {
        self.number().map(Stamp)
    }

    fn fence(&mut self) -> Result<u64, LoadError> {
        self.number().and_then(|fence| match fence {
            fence if fence > self.fence || fence >= FENCE_END => Err(wrong("a fence beyond the counter")),
            fence => Ok(fence),
        })
    }

    fn position(&mut self) -> Result<Position, LoadError> {
        let index = self.number()?;
        let ordinal = u32::try_from(self.number()?).map_err(|_| wrong("an ordinal that is too large"))?;
        Ok(Position { index, ordinal })
    }

    fn text(&mut self) -> Result<Arc<str>, LoadError> {
        let length = self.number()?;
        if length > TEXT_BYTES_MAX {
            return Err(wrong("a text that is too long"));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| wrong("a text that is too long"))?];
        self.source.read_exact(&mut bytes)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong("a text that is not UTF-8"))?;
        Ok(Arc::from(text))
    }

    fn text_if(&mut self, there: bool) -> Result<Option<Arc<str>>, LoadError> {
        if there { self.text().map(Some) } else { Ok(None) }
    }

    fn token(&mut self) -> Result<TokenHash, LoadError> {
        self.bytes().map(TokenHash)
    }

    fn record(&mut self) -> Result<Record, LoadError> {
        if self.number()? != kind::LEASE {
            return Err(wrong("a key of unknown type"));
        }
        let flags = self.number()?;
        let has = |flag| flags & flag != 0;
        if flags > flag::ALL || (!has(flag::GRANT) && has(flag::NOTE | flag::BROKEN)) {
            return Err(wrong("unknown flags"));
        }
        let version = self.position()?;
        let ends = if has(flag::ENDS) { Some(self.stamp()?) } else { None };
        let options = self.options(has(flag::TTL_MS_MAX))?;
        let grant = if has(flag::GRANT) { Some(self.grant(has(flag::NOTE), has(flag::BROKEN))?) } else { None };
        let last = if has(flag::LAST) { Some(Box::new(self.last(grant.as_ref())?)) } else { None };
        let kind = Kind::Lease(Lease { options, grant, last });
        Ok(Record { version, ends, auto_created: has(flag::AUTO_CREATED), kind })
    }

    fn options(&mut self, has_ttl_ms_max: bool) -> Result<LeaseOptions, LoadError> {
        Ok(LeaseOptions {
            delay_ms: self.number()?,
            min_hold_ms: self.number()?,
            ttl_ms_max: if has_ttl_ms_max { Some(self.number()?) } else { None },
        })
    }

    fn grant(&mut self, has_note: bool, is_broken: bool) -> Result<Grant, LoadError> {
        Ok(Grant {
            fence: self.fence()?,
            owner: self.text()?,
            token: self.token()?,
            deadline: self.stamp()?,
            granted_at: self.stamp()?,
            renewed_at: self.stamp()?,
            granted_wall_ms: self.number()?,
            min_hold_ms: self.number()?,
            delay_ms: self.number()?,
            note: self.text_if(has_note)?,
            broken: self.text_if(is_broken)?,
        })
    }

    fn last(&mut self, grant: Option<&Grant>) -> Result<Last, LoadError> {
        let fence = self.fence()?;
        let owner = self.text()?;
        let owner = match grant {
            Some(grant) if grant.owner == owner => Arc::clone(&grant.owner),
            _ => owner,
        };
        let token = self.token()?;
        let end = match self.number()? {
            end::RELEASED => End::Released,
            end::EXPIRED => End::Expired,
            end::BROKEN => End::Broken(self.text()?),
            _ => return Err(wrong("a grant that ended in an unknown way")),
        };
        Ok(Last { fence, owner, token, end, at: self.stamp()?, opens_at: self.stamp()? })
    }
}
