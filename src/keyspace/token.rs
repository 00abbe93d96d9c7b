//! The hash that stands for a token wherever it is kept or sent.

use sha2::{Digest, Sha256};

use super::TokenHash;

/// First 16 bytes of SHA-256 over `len(key) ‖ key ‖ len(token) ‖ token`, lengths as 8 bytes, big-endian. The key is in
/// it so that one token used for two keys does not show; the lengths, so that no two pairs run together. A persisted
/// format: the log and snapshots hold these.
#[must_use]
pub fn token_hash(key: &str, token: &str) -> TokenHash {
    let mut sha = Sha256::new();
    for part in [key, token] {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part.as_bytes());
    }
    let digest = sha.finalize();
    let mut first = [0; 16];
    first.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
    TokenHash(first)
}
