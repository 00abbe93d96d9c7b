//! One attempt to hold something: one token, asked with as often as it takes.
//!
//! # Model
//! Each ACQUIRE of the attempt carries its token, so a lost answer is resolved by asking again: granted by the first
//! copy, the second is told `yours`; waiting by the first copy, the second takes its place in the line. `once` is always
//! set: a token whose grant came and went unseen is refused as used, and the attempt goes on with a fresh one.
//!
//! An attempt given up while an ACQUIRE is in doubt, a waiting one included (error, or the future dropped), sends a
//! RELEASE in the background, so that neither a grant nobody knows of nor a place in the line keeps others waiting. Of a
//! token that the caller gave, the caller decides.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{Answered, CallError, Client, Options};
use crate::time::WallClock;
use crate::wire::{AcquireArgs, AcquireSlotArgs, Op, OpArgs, ReleaseArgs, Repeat, Request, Token};

/// Fresh tokens an attempt takes at most after its own were used up unseen.
const FRESH_TOKENS_MAX: u32 = 3;

/// Arguments of an ACQUIRE.
pub(crate) trait Ask: OpArgs + Clone + Send + Sync + 'static {
    /// The holder's secret.
    fn token(&self) -> &Token;

    /// A fresh one.
    fn set_token(&mut self, token: Token);

    /// As they are sent now: with that wait, and the wall clock if it is told.
    fn at_try(&self, wait_ms: Option<u64>, unix_ms: Option<u64>) -> Self;
}

impl Ask for AcquireArgs {
    fn token(&self) -> &Token {
        &self.token
    }

    fn set_token(&mut self, token: Token) {
        self.token = token;
    }

    fn at_try(&self, wait_ms: Option<u64>, _unix_ms: Option<u64>) -> AcquireArgs {
        AcquireArgs { wait_ms, ..self.clone() }
    }
}

impl Ask for AcquireSlotArgs {
    fn token(&self) -> &Token {
        &self.token
    }

    fn set_token(&mut self, token: Token) {
        self.token = token;
    }

    fn at_try(&self, wait_ms: Option<u64>, unix_ms: Option<u64>) -> AcquireSlotArgs {
        AcquireSlotArgs { wait_ms, unix_ms, ..self.clone() }
    }
}

/// See the module.
pub(crate) struct Asking<A: Ask> {
    pub client: Client,
    op: Op<A>,
    wall: Option<Arc<dyn WallClock>>,
    /// Tokens are the attempt's own.
    pub own: bool,
    fresh_left: u32,
    /// A grant may stand that nobody knows of.
    pub in_doubt: bool,
    /// The same, before the question that is under way.
    doubt_before: bool,
}

impl<A: Ask> Asking<A> {
    /// `own`: the token of `op` is the attempt's own.
    pub fn new(client: &Client, op: Op<A>, wall: Option<Arc<dyn WallClock>>, own: bool) -> Asking<A> {
        let fresh_left = if own { FRESH_TOKENS_MAX } else { 0 };
        Asking { client: client.clone(), op, wall, own, fresh_left, in_doubt: false, doubt_before: false }
    }

    /// The ACQUIRE, without waiting.
    pub fn op(&self) -> &Op<A> {
        &self.op
    }

    /// The token of now.
    pub fn token(&self) -> Token {
        self.op.args.token().clone()
    }

    /// Asks once, and waits in line for so long. Until the answer is judged ([`Asking::refused`], [`Asking::settled`]) it
    /// is in doubt.
    pub async fn ask(&mut self, wait: Duration) -> Result<Answered, CallError> {
        // While it is under way; what an earlier one left in doubt stays so, whatever this one comes to.
        self.doubt_before = std::mem::replace(&mut self.in_doubt, true);
        let (op, wall) = (self.op.clone(), self.wall.clone());
        let at_try = move |wait_ms| {
            let unix_ms = wall.as_ref().map(|wall| wall.unix_ms());
            Op { args: op.args.at_try(wait_ms, unix_ms), key: op.key.clone(), operation: op.operation }
        };
        let answered = if wait.is_zero() {
            let Options { call_timeout, try_timeout, .. } = *self.client.options();
            self.client.call_afresh(move || at_try(None), call_timeout, try_timeout).await
        } else {
            self.client.call_waiting(wait, move |wait_ms| at_try(Some(wait_ms))).await
        };
        if let Err(error) = &answered {
            self.in_doubt =
                self.doubt_before || matches!(error, CallError::OutcomeUnknown { .. } | CallError::Protocol { .. });
        }
        answered
    }

    /// That answer granted nothing. A first copy that is still under way may be granted yet.
    pub fn refused(&mut self, answered: &Answered) {
        self.in_doubt = self.doubt_before || answered.repeated;
    }

    /// What the token came to is known: held, or over.
    pub fn settled(&mut self) {
        self.in_doubt = false;
    }

    /// Its token is used up: from here on with a fresh one, if the attempt may take one yet.
    pub fn start_over(&mut self) -> Result<bool, getrandom::Error> {
        if self.fresh_left == 0 {
            return Ok(false);
        }
        self.fresh_left -= 1;
        self.op.args.set_token(Token::random()?);
        self.in_doubt = false;
        Ok(true)
    }

    /// `error`, unless an earlier try may have been granted: that is what the caller must know then.
    pub fn doubtful(&self, error: CallError) -> CallError {
        use CallError::{OutcomeUnknown, Refused, Unavailable, Unreachable};
        match error {
            call @ (Unavailable { .. } | Unreachable { .. } | Refused(_)) if self.in_doubt => {
                OutcomeUnknown { detail: format!("an earlier try may have been granted; the last: {call}") }
            }
            error => error,
        }
    }
}

impl<A: Ask> Drop for Asking<A> {
    fn drop(&mut self) {
        if !self.in_doubt || !self.own {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (client, key, token) = (self.client.clone(), self.op.key.clone(), self.token());
        runtime.spawn(async move {
            let timeout = client.options().call_timeout;
            if let Err(error) = give_back(&client, &key, &token, None, timeout).await {
                tracing::debug!(key, %error, "a grant in doubt was not given back");
            }
        });
    }
}

/// Whether time may change it: while there is some, asking again says what became of an attempt.
pub(crate) fn may_pass(error: &CallError) -> bool {
    matches!(error, CallError::Unreachable { .. } | CallError::Unavailable { .. } | CallError::OutcomeUnknown { .. })
}

/// RELEASE of whatever `token` holds, for the owner of a token that served one attempt only: nothing acquires with it
/// after this, so it is repeated without an answer, also where no `fence` is known.
///
/// # Errors
/// [`CallError`]; without an answer the grant ends by itself.
pub async fn give_back(
    client: &Client,
    key: &str,
    token: &Token,
    fence: Option<u64>,
    timeout: Duration,
) -> Result<Answered, CallError> {
    let release = GiveBack(Op::new(key, ReleaseArgs { token: token.clone(), fence }));
    client.call_within(&release, timeout, timeout.min(client.options().try_timeout)).await
}

/// A RELEASE that may be repeated.
#[derive(serde::Serialize)]
#[serde(transparent)]
struct GiveBack(Op<ReleaseArgs>);

impl Request for GiveBack {
    const COMMAND: &'static str = <Op<ReleaseArgs> as Request>::COMMAND;

    fn repeat(&self) -> Repeat {
        Repeat::ByToken
    }
}
