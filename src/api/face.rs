//! What a node's port serves over its life: a few pages while it starts, everything once it takes part. The port is bound
//! once and connections stay open over the change. A node that goes away says `Connection: close` with each answer: the
//! client's next request then goes to another node, and none is on its way when the connection is closed.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, header};
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use tower::Service;

use super::socket::Peer;

/// The service of all connections. Clones are handles.
#[derive(Clone)]
pub struct Face {
    starting: Router,
    serving: Arc<OnceLock<Router>>,
    leaving: Arc<AtomicBool>,
    /// The client of one connection.
    peer: Option<Peer>,
}

impl Face {
    /// Serves `starting` until it is told more.
    pub fn new(starting: Router) -> Self {
        Self { starting, serving: Arc::default(), leaving: Arc::default(), peer: None }
    }

    /// The same for one connection: its requests know whose they are.
    pub fn of(&self, peer: Peer) -> Self {
        Self { peer: Some(peer), ..self.clone() }
    }

    /// From now on, and for good, serves `router`.
    pub fn serve(&self, router: Router) {
        // Only the first counts: a node starts once.
        let _ = self.serving.set(router);
    }

    /// From now on each answer is the last on its connection, also that to a request which is being served.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }
}

impl Service<Request<Incoming>> for Face {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        if let Some(peer) = &self.peer {
            request.extensions_mut().insert(peer.clone());
        }
        let answer = self.serving.get().unwrap_or(&self.starting).clone().call(request);
        let leaving = Arc::clone(&self.leaving);
        Box::pin(async move {
            let mut response = answer.await?;
            if leaving.load(Ordering::Acquire) {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        })
    }
}
