//! Handshakes between members of clusters made for the tests, over real sockets.

mod bed;
mod handshake;
mod hostile;
mod rotation;
