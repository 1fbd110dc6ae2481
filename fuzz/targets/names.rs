//! Names that users and peers send as text: an accepted name prints as it was read.
#![no_main]

use farfork_fabric::Address;
use farfork_wire::{NodeName, SeedId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(seed) = text.parse::<SeedId>() {
        assert_eq!(seed.to_string(), text);
    }
    if let Ok(name) = NodeName::new(text) {
        assert_eq!(name.to_string(), text);
    }
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse::<Address>().as_ref(), Ok(&address));
    }
});
