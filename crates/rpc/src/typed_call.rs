//! Typed calls: request and reply are values, encoded with postcard.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{BlockingCallError, Client, OutgoingRequest, RequestPayload, SessionHandle};
use crate::server::HandlerTable;

/// A call, with the id and the types that client and server share.
pub trait TypedCall {
    /// Id of the handler. An id must never be reused for another call.
    const ID: u32;
    /// Type of the request.
    type Request: Serialize + DeserializeOwned;
    /// Type of the reply.
    type Reply: Serialize + DeserializeOwned;
}

/// Why a typed call has no reply.
#[derive(Debug, thiserror::Error)]
pub enum TypedCallError {
    /// The request cannot be encoded.
    #[error("the request cannot be encoded: {0}")]
    Encode(postcard::Error),
    /// The reply cannot be decoded.
    #[error("the answer cannot be decoded: {0}")]
    Decode(postcard::Error),
    /// The call has no reply.
    #[error(transparent)]
    Call(#[from] BlockingCallError),
}

impl Client {
    /// Makes a typed call and waits for the reply. The handler id in `call` is ignored.
    ///
    /// # Errors
    /// [`TypedCallError`]: the reason why there is no reply.
    pub fn call_typed<C: TypedCall>(
        &mut self,
        session: SessionHandle,
        call: &OutgoingRequest,
        request: &C::Request,
    ) -> Result<C::Reply, TypedCallError> {
        let bytes = postcard::to_stdvec(request).map_err(TypedCallError::Encode)?;
        let call = OutgoingRequest { handler: C::ID, ..*call };
        let reply = self.call_blocking(session, &call, RequestPayload::Owned(bytes), |_| {})?;
        postcard::from_bytes(&reply).map_err(TypedCallError::Decode)
    }
}

impl HandlerTable {
    /// Adds a handler of a typed call. If the handler returns an error, the caller gets the error's text.
    pub fn add_typed_handler<C: TypedCall>(
        &mut self,
        mut handler: impl FnMut(C::Request) -> Result<C::Reply, String> + Send + 'static,
    ) {
        self.add_handler(C::ID, move |payload, reply| {
            let request = match postcard::from_bytes(payload) {
                Ok(request) => request,
                Err(cause) => return reply.refuse(&format!("the request cannot be decoded: {cause}")),
            };
            let written = match handler(request) {
                Ok(answer) => reply.append_with(|out| postcard::to_io(&answer, VecWriter(out)).map(drop)),
                Err(reason) => return reply.refuse(&reason),
            };
            if let Err(cause) = written {
                reply.refuse(&format!("the answer cannot be encoded: {cause}"));
            }
        });
    }
}

/// A writer that appends to a vector.
struct VecWriter<'a>(&'a mut Vec<u8>);

impl io::Write for VecWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
