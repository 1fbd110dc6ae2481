//! How a child's pages are fetched, as whoever forks it chose: `cow`, `prefetch` or `eager`, each also with `cache`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pager::prefetch::REGION_SLOTS;

/// When pages come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Paging {
    /// Each page when it is touched, alone.
    Cow,
    /// When they are touched, with those that are likely to be touched soon.
    #[default]
    Prefetch,
    /// All before the child's first instruction.
    Eager,
}

/// How pages are fetched. As text: one of `cow`, `prefetch` and `eager`, or none of them for `prefetch`; and `cache` and
/// `first` behind commas or alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strategy {
    /// When they come.
    pub paging: Paging,
    /// Whether the node keeps what was fetched for further children of the seed, and looks there first.
    pub cache: bool,
    /// Whether the child is treated as if it were its seed's first: what earlier ones touched does not help it, and what it
    /// touches does not help others. For measurements.
    pub first: bool,
    /// How long an owner may be unreachable before the child's memory counts as lost.
    pub unreachable_limit: Duration,
}

/// Why a text is no strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// A word that means nothing.
    #[error(
        "there is no strategy `{0}`: use cow, prefetch or eager, and cache or first with any of them, as in `cow,cache`"
    )]
    Unknown(String),
    /// Two that exclude each other.
    #[error("strategies `{0}` and `{1}` exclude each other: use one of cow, prefetch and eager")]
    Contradiction(Paging, Paging),
}

impl Strategy {
    /// Most pages that one fault brings.
    pub(in crate::pager) fn window_slots_max(&self) -> u64 {
        match self.paging {
            Paging::Cow => 1,
            Paging::Prefetch | Paging::Eager => REGION_SLOTS,
        }
    }
}

impl Default for Strategy {
    /// An owner may be away for a minute, long enough for a link or a switch to return.
    fn default() -> Self {
        Self { paging: Paging::default(), cache: false, first: false, unreachable_limit: Duration::from_secs(60) }
    }
}

impl Paging {
    const ALL: [Self; 3] = [Self::Cow, Self::Prefetch, Self::Eager];

    fn name(self) -> &'static str {
        match self {
            Self::Cow => "cow",
            Self::Prefetch => "prefetch",
            Self::Eager => "eager",
        }
    }
}

impl fmt::Display for Paging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const CACHE: &str = "cache";
const FIRST: &str = "first";

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.paging)?;
        let words = [(self.cache, CACHE), (self.first, FIRST)];
        words.iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, word)| write!(f, ",{word}"))
    }
}

impl FromStr for Strategy {
    type Err = StrategyError;

    fn from_str(text: &str) -> Result<Self, StrategyError> {
        let (mut paging, mut cache, mut first) = (None, false, false);
        for word in text.split(',').map(str::trim) {
            match Paging::ALL.into_iter().find(|paging| paging.name() == word) {
                Some(named) => match paging.replace(named) {
                    Some(before) if before != named => return Err(StrategyError::Contradiction(before, named)),
                    _ => {}
                },
                None if word == CACHE => cache = true,
                None if word == FIRST => first = true,
                None => return Err(StrategyError::Unknown(word.to_owned())),
            }
        }
        Ok(Self { paging: paging.unwrap_or_default(), cache, first, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::{Paging, Strategy, StrategyError};

    #[test]
    fn texts_are_strategies_and_back() {
        for (text, paging, cache, first, shown) in [
            ("cow", Paging::Cow, false, false, "cow"),
            ("prefetch", Paging::Prefetch, false, false, "prefetch"),
            ("eager", Paging::Eager, false, false, "eager"),
            ("cache", Paging::Prefetch, true, false, "prefetch,cache"),
            ("cache, cow", Paging::Cow, true, false, "cow,cache"),
            ("eager,cache,eager", Paging::Eager, true, false, "eager,cache"),
            ("first", Paging::Prefetch, false, true, "prefetch,first"),
            ("first,cow,cache", Paging::Cow, true, true, "cow,cache,first"),
        ] {
            let strategy: Strategy = text.parse().unwrap();
            let found = (strategy.paging, strategy.cache, strategy.first, strategy.to_string());
            assert_eq!(found, (paging, cache, first, shown.to_owned()));
        }
    }

    #[test]
    fn nonsense_is_named() {
        let parse = |text: &str| text.parse::<Strategy>().unwrap_err();
        assert_eq!(parse("cow,eager"), StrategyError::Contradiction(Paging::Cow, Paging::Eager));
        assert_eq!(parse("cow,fast"), StrategyError::Unknown("fast".to_owned()));
        assert_eq!(parse(""), StrategyError::Unknown(String::new()));
    }
}
