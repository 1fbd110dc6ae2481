//! Peers that do not keep to the protocol.
