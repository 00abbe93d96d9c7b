//! The pause before something is tried again that surely did not happen: short at first, doubled each time.

use std::time::Duration;

use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::InstantOf;

use crate::raft::{AsyncRuntime, TypeConfig};

/// The first pause.
const FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(160);

/// See the module's head.
#[derive(Debug)]
pub struct Rest<RT: AsyncRuntime> {
    next: Duration,
    until: Option<InstantOf<TypeConfig<RT>>>,
}

impl<RT: AsyncRuntime> Default for Rest<RT> {
    fn default() -> Self {
        Self { next: FIRST, until: None }
    }
}

impl<RT: AsyncRuntime> Rest<RT> {
    /// A pause begins, unless one is on.
    pub fn begin(&mut self) {
        if !self.is_on() {
            self.until = Some(TypeConfig::<RT>::now() + self.next);
            self.next = (self.next * 2).min(LONGEST);
        }
    }

    /// It went well: the next pause is the first again.
    pub fn shorten(&mut self) {
        self.next = FIRST;
    }

    /// Things have changed: no pause.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// Is a pause on?
    pub fn is_on(&self) -> bool {
        self.until.is_some_and(|until| until > TypeConfig::<RT>::now())
    }

    /// Resolves when the pause is over.
    pub async fn over(&self) {
        if let Some(until) = self.until {
            TypeConfig::<RT>::sleep_until(until).await;
        }
    }
}
