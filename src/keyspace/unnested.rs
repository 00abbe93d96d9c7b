//! BATCH as it is read: its items are no BATCHes.
//!
//! A type that holds itself is decoded by calls that hold themselves: a few kilobytes of BATCH in BATCH would end the
//! process with its stack. So while the items of one are read on a thread, another is refused before anything in it is
//! looked at. Between two readings nothing is kept.

use std::cell::Cell;

use serde::de::{Deserialize, Deserializer, Error};

thread_local! {
    /// The items of a BATCH are being read.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Until the items are read, or refused.
struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// The items of a BATCH, or their replies.
pub(super) fn items<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    if INSIDE.replace(true) {
        return Err(D::Error::custom("a BATCH in a BATCH"));
    }
    let _inside = Inside;
    Vec::deserialize(deserializer)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use tenure_cluster::entry;

    use crate::keyspace::{Command, Keyspace, Refusal, Reply};

    #[test]
    fn a_batch_is_read_and_a_batch_in_a_batch_is_not() {
        let flat = Command::Batch(vec![Command::Get { key: "k".into() }, Command::Persist { key: "l".into() }]);
        let bytes = entry::encode_command::<Keyspace>(&flat).unwrap();
        assert_eq!(entry::decode_command::<Keyspace>(&bytes).unwrap(), flat);
        let nested = entry::encode_command::<Keyspace>(&Command::Batch(vec![flat])).unwrap();
        assert!(entry::decode_command::<Keyspace>(&nested).unwrap_err().to_string().contains("BATCH in a BATCH"));
        assert!(entry::decode_command::<Keyspace>(&bytes).is_ok(), "a refusal leaves nothing behind");
        let all = Command::AllOrNothing(vec![Command::Persist { key: "l".into() }]);
        let bytes = entry::encode_command::<Keyspace>(&all).unwrap();
        assert_eq!(entry::decode_command::<Keyspace>(&bytes).unwrap(), all);
        for outer in [Command::Batch, Command::AllOrNothing] {
            let nested = entry::encode_command::<Keyspace>(&outer(vec![all.clone()])).unwrap();
            assert!(entry::decode_command::<Keyspace>(&nested).unwrap_err().to_string().contains("BATCH in a BATCH"));
        }

        let flat = Reply::Batch(vec![Reply::Deleted(7), Reply::Refused(Refusal::NoSuchKey)]);
        let bytes = entry::encode_replies::<Keyspace>(std::slice::from_ref(&flat)).unwrap();
        assert_eq!(entry::decode_reply::<Keyspace>(&bytes[0]).unwrap(), flat);
        let nested = entry::encode_replies::<Keyspace>(&[Reply::Batch(vec![flat])]).unwrap();
        assert!(entry::decode_reply::<Keyspace>(&nested[0]).unwrap_err().to_string().contains("BATCH in a BATCH"));
    }

    #[test]
    fn a_deep_one_does_not_end_the_process() {
        let deep = |head: [u8; 3], variant: u8| [&head[..], &[variant, 1].repeat(1_000_000)].concat();
        assert!(entry::decode_command::<Keyspace>(&deep([3, 1, 0], 8)).is_err());
        let all = entry::encode_command::<Keyspace>(&Command::AllOrNothing(Vec::new())).unwrap();
        let [kind, low, high, variant, _] = all[..] else { panic!("{all:?}") };
        assert!(entry::decode_command::<Keyspace>(&deep([kind, low, high], variant)).is_err());
        assert!(entry::decode_reply::<Keyspace>(&deep([4, 1, 0], 4)).is_err());
    }
}
