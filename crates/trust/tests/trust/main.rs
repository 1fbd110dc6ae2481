//! Handshakes between members of clusters made for the purpose, over real sockets.

mod bed;
mod handshake;
mod hostile;
mod rotation;
