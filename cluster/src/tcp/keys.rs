//! The keys of a connection, and what they prove.
//!
//! Both hellos, each with 32 fresh random bytes, and the cluster's secret give a session of its own keys: one to prove
//! each side's knowledge of the secret, one for the frames of each direction. Nothing recorded on another connection, on
//! the other direction or at another place of this one has the right tag here.
//!
//! Not promised: secrecy (frames are in clear), nor that a weak secret withstands whoever saw a greeting and guesses at
//! leisure: a secret must be random.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::peer_config::Secret;

/// Bytes of a nonce.
pub(super) const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub(super) const PROOF_BYTES: usize = 32;
/// Bytes of a frame's tag.
pub(super) const TAG_BYTES: usize = 16;

type HmacSha256 = Hmac<Sha256>;

/// Who speaks. Part of everything that is authenticated, so that nothing can be sent back to where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The one who connected.
    Dialler = 1,
    /// The one who accepted.
    Listener = 2,
}

/// A MAC with a key of 32 bytes: HMAC fills a short key up with zeros to its block, so that this is the plain thing.
fn keyed(key: &[u8; 32]) -> HmacSha256 {
    let mut block = [0; 64];
    block[..32].copy_from_slice(key);
    HmacSha256::new(&block.into())
}

fn derive(root: &HmacSha256, label: &[u8], role: Role) -> [u8; 32] {
    let mut mac = root.clone();
    mac.update(label);
    mac.update(&[role as u8]);
    mac.finalize().into_bytes().into()
}

/// One connection's keys.
pub(super) struct Session {
    root: HmacSha256,
}

impl Session {
    /// From the secret and both greetings as they stood on the wire, nonces included.
    pub(super) fn new(secret: &Secret, dialler: &[u8], listener: &[u8]) -> Self {
        let mut mac = keyed(&Sha256::digest(secret.expose()).into());
        mac.update(b"tenure peer session 1");
        for greeting in [dialler, listener] {
            mac.update(&(greeting.len() as u64).to_le_bytes());
            mac.update(greeting);
        }
        Self { root: keyed(&mac.finalize().into_bytes().into()) }
    }

    /// What `role` shows to prove that it knows the secret.
    pub(super) fn proof(&self, role: Role) -> [u8; PROOF_BYTES] {
        derive(&self.root, b"proof", role)
    }

    /// Is this the proof of `role`? In constant time.
    pub(super) fn proves(&self, role: Role, proof: &[u8]) -> bool {
        let mut mac = self.root.clone();
        mac.update(b"proof");
        mac.update(&[role as u8]);
        mac.verify_slice(proof).is_ok()
    }

    /// The tags of the frames that `role` sends.
    pub(super) fn tags(&self, role: Role) -> Tags {
        Tags { mac: keyed(&derive(&self.root, b"frames", role)), role, number: 0 }
    }
}

/// The tags of one direction's frames, in order.
pub(super) struct Tags {
    mac: HmacSha256,
    role: Role,
    /// The next frame's.
    number: u64,
}

impl Tags {
    fn over(&mut self, body: &[u8]) -> HmacSha256 {
        let mut mac = self.mac.clone();
        mac.update(&[self.role as u8]);
        mac.update(&self.number.to_le_bytes());
        mac.update(body);
        // 2^64 frames: never reached.
        self.number = self.number.wrapping_add(1);
        mac
    }

    /// The tag of the next frame.
    pub(super) fn seal(&mut self, body: &[u8]) -> [u8; TAG_BYTES] {
        let whole: [u8; 32] = self.over(body).finalize().into_bytes().into();
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&whole[..TAG_BYTES]);
        tag
    }

    /// Is `tag` that of the next frame, and this its body? In constant time.
    pub(super) fn check(&mut self, body: &[u8], tag: &[u8]) -> bool {
        tag.len() == TAG_BYTES && self.over(body).verify_truncated_left(tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(secret: &str, dialler: &[u8], listener: &[u8]) -> Session {
        Session::new(&Secret::new(secret).unwrap(), dialler, listener)
    }

    #[test]
    fn proofs_hang_on_secret_role_and_both_greetings() {
        let ours = session("a secret of the cluster", b"hello a", b"hello b");
        let proof = ours.proof(Role::Dialler);
        assert!(ours.proves(Role::Dialler, &proof));
        assert!(!ours.proves(Role::Listener, &proof));
        assert!(!ours.proves(Role::Dialler, &proof[..16]));
        assert!(!ours.proves(Role::Dialler, b""));
        assert!(!session("b secret of the cluster", b"hello a", b"hello b").proves(Role::Dialler, &proof));
        assert!(!session("a secret of the cluster", b"hello b", b"hello a").proves(Role::Dialler, &proof));
        assert!(!session("a secret of the cluster", b"hello ah", b"ello b").proves(Role::Dialler, &proof));
    }

    #[test]
    fn tags_hang_on_body_order_and_direction() {
        let session = session("a secret of the cluster", b"a", b"b");
        let mut seal = session.tags(Role::Dialler);
        let (first, second) = (seal.seal(b"one"), seal.seal(b"two"));
        let mut check = session.tags(Role::Dialler);
        assert!(check.check(b"one", &first) && check.check(b"two", &second));
        assert!(!session.tags(Role::Dialler).check(b"two", &second), "out of order");
        assert!(!session.tags(Role::Listener).check(b"one", &first), "sent back");
        assert!(!session.tags(Role::Dialler).check(b"One", &first), "changed");
        assert!(!session.tags(Role::Dialler).check(b"one", &first[..4]), "short tag");
        let mut again = session.tags(Role::Dialler);
        assert!(again.check(b"one", &first) && !again.check(b"one", &first), "replayed");
    }
}
