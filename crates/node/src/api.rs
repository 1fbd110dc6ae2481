//! The control API as generated from `proto/farfork/v1/`, whose comments are its documentation.

/// Version 1, the only one.
#[expect(missing_docs, clippy::large_enum_variant, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("farfork.v1");
}
