//! What a restart makes of the segments: reads all of them, believes nothing that does not check out, and changes
//! nothing on disk before it has read everything.
//!
//! A record that does not check out is a **torn tail** when nothing of a later write group follows it: its group was never
//! synced, so nobody was told, and the whole group is cut. If a later group follows, its own was synced once: that is
//! **damage** and refused, as is damage in any but the newest segment, a missing segment, and a log whose records do not
//! add up to what the next header restates.
//!
//! Not noticed: damage to the very last group of the log that looks like a torn write of it.
//!
//! What was read is made durable before anybody leans on it: the last group may have been read from memory that a failed
//! sync never brought to the disk. So it is written again, with the same bytes, and synced; and a cut tail is zeroed, so
//! that stale records cannot come back.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::LogOptions;
use super::index::Index;
use super::record::{self, Change, Place, RecordKind};
use super::segment::{self, HEADER, HeaderError, Segment};
use super::spare;
use super::state::State;
use crate::codec::DecodeError;
use crate::error::{OpenError, Remedy};
use crate::files::Disk;
use crate::persisted::SegmentHeaderV1;
use crate::planted::{self, Bug};

/// Where the log ends.
pub struct Recovered {
    /// Readers' view.
    pub index: Index,
    /// The newest segment.
    pub segment: Arc<Segment>,
    /// Where the next group begins in it.
    pub offset: u64,
    /// The next group's number.
    pub group: u64,
    /// What the records add up to.
    pub state: State,
    /// Numbers of the spares that are whole.
    pub spares: Vec<u64>,
}

/// One segment's file, read.
struct Image {
    segment: Arc<Segment>,
    header: SegmentHeaderV1,
    bytes: Vec<u8>,
}

/// What a segment's records came to.
struct Scan {
    /// Where its last whole group ends, a roll record excluded.
    end: u64,
    /// Where that group begins.
    last_group: u64,
    /// The next group's number, a roll record's excluded.
    group: u64,
    /// Its roll record is there.
    rolled: bool,
    /// Where its last byte that is not zero ends, if that is beyond the last whole group.
    torn_until: Option<u64>,
}

/// Opens the log in `dir`, making the directory and the first segment if there is none.
///
/// # Errors
/// [`OpenError`]; unless the directory was empty, nothing was changed when the log is refused.
pub fn recover(disk: &dyn Disk, dir: &Path, options: &LogOptions) -> Result<Recovered, OpenError> {
    let reader = Reader { disk, dir, remedy: options.remedy };
    disk.create_dir(dir).map_err(|error| reader.io("creating it failed", error))?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.sync_dir(parent).map_err(|error| reader.io("syncing its parent failed", error))?;
    }
    let names = disk.list(dir).map_err(|error| reader.io("listing it failed", error))?;
    let mut sequences: Vec<u64> = names.iter().filter_map(|name| segment::sequence_of(name)).collect();
    sequences.sort_unstable();
    if sequences.is_empty() {
        if options.must_exist {
            return Err(reader.damaged("it has no log segment although this node had a log"));
        }
        let spares = reader.tidy(&names, options)?;
        return reader.begin(options, spares);
    }
    for pair in sequences.windows(2) {
        if pair[0] + 1 != pair[1] {
            return Err(reader.damaged(&format!("log segment {} is missing", segment::file_name(pair[0] + 1))));
        }
    }
    let mut recovered = reader.read_all(&sequences)?;
    recovered.spares = reader.tidy(&names, options)?;
    Ok(recovered)
}

struct Reader<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    remedy: Remedy,
}

impl Reader<'_> {
    fn io(&self, what: &str, source: io::Error) -> OpenError {
        OpenError::Io { path: self.dir.to_owned(), what: what.to_owned(), source }
    }

    fn damaged(&self, what: &str) -> OpenError {
        OpenError::Damaged { path: self.dir.to_owned(), what: what.to_owned(), remedy: self.remedy }
    }

    fn damaged_at(&self, sequence: u64, offset: u64, what: &str) -> OpenError {
        self.damaged(&format!("log segment {}, byte {offset}: {what}", segment::file_name(sequence)))
    }

    fn undecodable(&self, sequence: u64, offset: u64, error: &DecodeError) -> OpenError {
        match error {
            DecodeError::Version { .. } => OpenError::Foreign {
                path: self.dir.to_owned(),
                what: format!(
                    "was written by a newer version of this program: log segment {}, byte {offset}: {error}. Start that \
                     version; nothing was changed",
                    segment::file_name(sequence)
                ),
            },
            other => self.damaged_at(sequence, offset, &other.to_string()),
        }
    }

    /// The first segment of a new log.
    fn begin(&self, options: &LogOptions, mut spares: Vec<u64>) -> Result<Recovered, OpenError> {
        let failed = |error| self.io("making the first log segment failed", error);
        let number = spares.pop().unwrap_or(1);
        let spare = spare::path(self.dir, number);
        if self.disk.open(&spare).is_err() {
            spare::make(self.disk, self.dir, options.segment_bytes, number).map_err(failed)?;
        }
        let state = State::default();
        let header = SegmentHeaderV1 { sequence: 1, previous_end: 0, group: 1, state };
        let segment = Arc::new(segment::found(self.disk, self.dir, &spare, &header).map_err(failed)?);
        let mut index = Index::new(state);
        index.segments.push_back(Arc::clone(&segment));
        Ok(Recovered { index, segment, offset: HEADER, group: 1, state, spares })
    }

    /// Removes what a crash left unfinished, and spares of another size; returns the numbers of the good ones.
    fn tidy(&self, names: &[String], options: &LogOptions) -> Result<Vec<u64>, OpenError> {
        let mut spares = Vec::new();
        for name in names {
            let path = self.dir.join(name);
            let failed = |error| self.io(&format!("looking at {name} failed"), error);
            match spare::number_of(name) {
                Some(number) => {
                    let length = self.disk.open(&path).and_then(|file| file.len()).map_err(failed)?;
                    if length == options.segment_bytes {
                        spares.push(number);
                        continue;
                    }
                }
                None if spare::is_unfinished(name) => {}
                None => continue,
            }
            self.disk.remove(&path).map_err(|error| self.io(&format!("removing {name} failed"), error))?;
        }
        self.disk.sync_dir(self.dir).map_err(|error| self.io("syncing it failed", error))?;
        Ok(spares)
    }

    fn read(&self, sequence: u64) -> Result<Image, OpenError> {
        let name = segment::file_name(sequence);
        let failed = |error| self.io(&format!("reading {name} failed"), error);
        let file = self.disk.open(&segment::path(self.dir, sequence)).map_err(failed)?;
        let capacity = file.len().map_err(failed)?;
        if u32::try_from(capacity).is_err() {
            return Err(self.damaged_at(sequence, capacity, "it is longer than any segment"));
        }
        let mut bytes = vec![0; capacity as usize];
        file.read_at(&mut bytes, 0).map_err(failed)?;
        let header = segment::decode_header(&bytes).map_err(|error| match &error {
            HeaderError::Decode(decode) => self.undecodable(sequence, 0, decode),
            HeaderError::Damaged => self.damaged_at(sequence, 0, &error.to_string()),
        })?;
        if header.sequence != sequence {
            let what = format!("its header is that of segment {}", header.sequence);
            return Err(self.damaged_at(sequence, 0, &what));
        }
        Ok(Image { segment: Arc::new(Segment { sequence, file, capacity }), header, bytes })
    }

    /// Reads all segments, then makes what it read durable.
    fn read_all(&self, sequences: &[u64]) -> Result<Recovered, OpenError> {
        let mut index: Option<Index> = None;
        let mut segments = VecDeque::with_capacity(sequences.len());
        let mut before: Option<(Arc<Segment>, Scan)> = None;
        let mut newest: Option<(Image, Scan)> = None;
        for (at, sequence) in sequences.iter().enumerate() {
            let image = self.read(*sequence)?;
            let index = index.get_or_insert_with(|| Index::new(image.header.state));
            before = newest.take().map(|(image, scan)| (image.segment, scan));
            if let Some((segment, scan)) = &before {
                self.check_joint(segment, scan, &image, index, at + 1 == sequences.len())?;
            }
            let scan = self.scan(&image, index)?;
            segments.push_back(Arc::clone(&image.segment));
            newest = Some((image, scan));
        }
        let (Some((image, scan)), Some(mut index)) = (newest, index) else {
            return Err(self.damaged("it has no log segment"));
        };
        index.segments = segments;
        self.check_sum(&image, &scan, &index)?;
        if scan.end == HEADER
            && let Some((segment, scan)) = &before
        {
            self.rewrite_roll(segment, scan, image.segment.sequence)
                .map_err(|error| self.io("repairing the end of a log segment failed", error))?;
        }
        rewrite_end(&image, &scan).map_err(|error| self.io("repairing the end of the log failed", error))?;
        // What the records say, for the headers to come; readers are shown a committed id within the log.
        let state = index.state;
        index.state.clamp_committed();
        Ok(Recovered { index, segment: image.segment, offset: scan.end, group: scan.group, state, spares: Vec::new() })
    }

    /// Checks what all records came to.
    fn check_sum(&self, newest: &Image, scan: &Scan, index: &Index) -> Result<(), OpenError> {
        if scan.rolled {
            let next = segment::file_name(newest.segment.sequence + 1);
            return Err(self.damaged(&format!("log segment {next} is missing: the one before it names it")));
        }
        if let Some(missing) = index.missing() {
            return Err(self.damaged(&format!("log entry {missing} is missing: an older log segment was lost")));
        }
        Ok(())
    }

    /// Checks that `image` goes on where the segment before it ended.
    fn check_joint(
        &self,
        before: &Segment,
        scan: &Scan,
        image: &Image,
        index: &Index,
        newest: bool,
    ) -> Result<(), OpenError> {
        let (old, sequence) = (before.sequence, image.segment.sequence);
        // The roll record is written last: a crash before that leaves a newest segment without records.
        let barely_begun = newest && image.bytes.iter().skip(HEADER as usize).all(|byte| *byte == 0);
        if !scan.rolled && !barely_begun {
            return Err(self.damaged_at(old, scan.end, "records are missing: a younger segment goes on after them"));
        }
        let header = &image.header;
        if (header.previous_end, header.group) != (scan.end, scan.group + 1) {
            return Err(self.damaged_at(old, scan.end, "it does not end where the next segment says"));
        }
        if header.state != index.state {
            return Err(self.damaged_at(sequence, 0, "the records before it do not add up to what its header says"));
        }
        Ok(())
    }

    /// Replays the whole groups of a segment into `index`.
    fn scan(&self, image: &Image, index: &mut Index) -> Result<Scan, OpenError> {
        let sequence = image.segment.sequence;
        let mut scan =
            Scan { end: HEADER, last_group: HEADER, group: image.header.group, rolled: false, torn_until: None };
        let mut pending: Vec<(Change, Place, u64)> = Vec::new();
        let mut offset = HEADER;
        while let Some(found) = record_at(image, offset).filter(|found| found.group == scan.group) {
            let place = Place { sequence, offset };
            let change = Change::decode(found.kind, found.index, found.payload)
                .map_err(|error| self.undecodable(sequence, offset, &error))?;
            if let Change::Roll(next) = change {
                if !pending.is_empty() || !found.last || next != sequence + 1 {
                    return Err(self.damaged_at(sequence, offset, "a roll record that cannot be there"));
                }
                scan.rolled = true;
                return Ok(scan);
            }
            pending.push((change, place, found.len() as u64));
            offset += found.len() as u64;
            if found.last {
                for (change, place, bytes) in pending.drain(..) {
                    index
                        .replay(&change, place, bytes)
                        .map_err(|hole| self.damaged_at(sequence, place.offset, &hole.to_string()))?;
                }
                (scan.last_group, scan.end, scan.group) = (scan.end, offset, scan.group + 1);
            }
        }
        let rest = image.bytes.get(scan.end as usize..).unwrap_or_default();
        let torn = rest.iter().rposition(|byte| *byte != 0);
        scan.torn_until = torn.map(|at| scan.end + at as u64 + 1);
        if let Some(until) = scan.torn_until
            && let Some(later) = later_group(image, offset, until, scan.group)
        {
            let what = format!(
                "a record of write group {} does not check out although group {later} was written after it",
                scan.group
            );
            return Err(self.damaged_at(sequence, offset, &what));
        }
        Ok(scan)
    }

    /// Writes the roll record, for the first time or again with the same bytes: see the module's head.
    fn rewrite_roll(&self, segment: &Segment, scan: &Scan, next: u64) -> io::Result<()> {
        let mut bytes = Vec::new();
        let place = Place { sequence: segment.sequence, offset: scan.end };
        record::put(&mut bytes, place, RecordKind::Roll, scan.group, true, next, &[]);
        segment.file.write_at(&bytes, scan.end)?;
        segment.file.sync_data()
    }
}

/// Writes the last group again, zeroes what is torn after it, and syncs both.
fn rewrite_end(image: &Image, scan: &Scan) -> io::Result<()> {
    let file = &image.segment.file;
    if let Some(until) = scan.torn_until {
        let (bytes, sequence) = (until - scan.end, image.segment.sequence);
        tracing::info!("log segment {sequence}: {bytes} bytes of an unfinished write were cut, as after a crash");
        file.write_at(&vec![0; (until - scan.end) as usize], scan.end)?;
    }
    if let Some(group) = image.bytes.get(scan.last_group as usize..scan.end as usize) {
        file.write_at(group, scan.last_group)?;
    }
    file.sync_data()
}

/// The first group beyond `group` of which a record checks out at or after `offset`.
fn later_group(image: &Image, offset: u64, until: u64, group: u64) -> Option<u64> {
    if planted::has(Bug::TornGroupRefused) {
        return Some(group);
    }
    if planted::has(Bug::DamageCut) {
        return None;
    }
    (offset..until).find_map(|at| record_at(image, at).map(|found| found.group).filter(|found| *found > group))
}

fn record_at(image: &Image, offset: u64) -> Option<record::Found<'_>> {
    let bytes = image.bytes.get(usize::try_from(offset).ok()?..)?;
    record::parse(bytes, Place { sequence: image.segment.sequence, offset })
}
