//! A simulated world with an owner, a well-behaved node, and a node that the fuzzer controls.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farfork_fabric::sim::World;
use farfork_fabric::sim::world::{NodeId, SimAddress};
use farfork_fabric::transport::Stream;
use farfork_fabric::{Region, SeedKey};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{NodeName, SeedId, Token};

/// The world, its nodes, and the address at which a target listens.
pub struct Stage {
    /// The world.
    pub world: World,
    /// The node that the fuzzer controls.
    pub stranger: NodeId,
    /// A well-behaved node.
    pub friend: NodeId,
    /// The address of the owner, or of the server under test.
    pub address: SimAddress,
}

impl Default for Stage {
    fn default() -> Self {
        let world = World::new(1);
        let (owner, stranger, friend) = (world.add_node("owner"), world.add_node("stranger"), world.add_node("friend"));
        Self { world, stranger, friend, address: SimAddress { node: owner, port: 1 } }
    }
}

impl Stage {
    /// Sends as many bytes as the other side accepts, and discards the replies. Returns when the other side has ended the
    /// stream, when the world has no more events, or after two seconds of simulated time.
    pub fn talk(&self, stream: &mut dyn Stream, bytes: &[u8]) {
        let (mut rest, mut sink) = (bytes, [0; 4096]);
        let until = self.world.now() + Duration::from_secs(2);
        while self.world.now() < until {
            match stream.send(&[IoSlice::new(rest)]) {
                Ok(sent) => rest = &rest[sent.unwrap_or(0)..],
                Err(_) => return,
            }
            match stream.receive(&mut [IoSliceMut::new(&mut sink)]) {
                Ok(Some(0)) | Err(_) => return,
                Ok(_) => {}
            }
            if !self.world.step(until) && !stream.is_ready(true, !rest.is_empty()) {
                return;
            }
        }
    }
}

/// The key of the seed that is served.
pub fn key() -> Arc<SeedKey> {
    let seed = SeedId::new(NodeName::new("n1").expect("a name"), 1);
    Arc::new(SeedKey { seed, token: Token::from_bytes([7; 16]) })
}

/// Two consecutive extents of memory. A byte that was not written is the lowest byte of its position in this memory.
pub struct Memory(Mutex<Vec<u8>>);

/// Length of each extent, in bytes.
pub const EXTENT_BYTES: usize = 5000;

impl Default for Memory {
    fn default() -> Self {
        Self(Mutex::new((0..2 * EXTENT_BYTES).map(|at| at as u8).collect()))
    }
}

impl Memory {
    fn place(extent: ExtentId, offset: u64, bytes: usize) -> std::ops::Range<usize> {
        let begin = extent.0 as usize * EXTENT_BYTES + offset as usize;
        assert!(offset as usize + bytes <= EXTENT_BYTES, "the fabric checks the bounds");
        begin..begin + bytes
    }
}

impl Region for Memory {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        (extent.0 < 2).then_some(EXTENT_BYTES as u64)
    }

    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0.lock().expect("no panic")[Self::place(extent, offset, into.len())]);
        Ok(())
    }

    fn write(&self, extent: ExtentId, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.lock().expect("no panic")[Self::place(extent, offset, from.len())].copy_from_slice(from);
        Ok(())
    }
}
