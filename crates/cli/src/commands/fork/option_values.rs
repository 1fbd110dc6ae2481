//! Parses the values of the options of `farfork fork`. A message says what to write instead; clap adds the option and the value.

use std::convert::Infallible;
use std::time::Duration;

use farfork_api::v1::{Bind, PublishedPort};
use farfork_fork::pager::{PagingStrategy, PagingStrategyError};

use crate::duration;

/// Upper limit of --cpus, in thousandths of a CPU: more than any machine has.
const CPU_MILLICORES_MAX: f64 = 1e6;

/// Removes the spaces around an element of a list such as `n2, n3`.
pub(super) fn trim_spaces(text: &str) -> Result<String, Infallible> {
    Ok(text.trim().to_owned())
}

/// Parses a paging strategy.
pub(super) fn parse_strategy(text: &str) -> Result<PagingStrategy, PagingStrategyError> {
    text.parse()
}

/// Parses the time for which an owner may be unreachable. Returns milliseconds.
pub(super) fn parse_owner_timeout(text: &str) -> Result<u64, String> {
    let milliseconds = duration::parse_ms(text)?;
    let checked = PagingStrategy::default().set_unreachable_timeout(Duration::from_millis(milliseconds));
    checked.map(|()| milliseconds).map_err(|error| error.to_string())
}

/// Parses a number of CPUs. Returns thousandths of a CPU.
pub(super) fn parse_millicores(text: &str) -> Result<u64, String> {
    let millicores = text.parse().ok().map(|cpus: f64| (cpus * 1000.0).round());
    match millicores {
        Some(millicores) if (1.0..=CPU_MILLICORES_MAX).contains(&millicores) => Ok(millicores as u64),
        _ => Err("write it like 0.5 or 2".to_owned()),
    }
}

/// Parses a path of the node and a path of the child.
pub(super) fn parse_bind(text: &str) -> Result<Bind, String> {
    match text.split_once(':') {
        Some((from, to)) if from.starts_with('/') && to.starts_with('/') => {
            Ok(Bind { from: from.to_owned(), to: to.to_owned() })
        }
        _ => Err("write it like /path/on/the/node:/path/in/the/child".to_owned()),
    }
}

/// Parses a port of the node and a port of the child.
pub(super) fn parse_publish(text: &str) -> Result<PublishedPort, String> {
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    match text.split_once(':').map(|(node, child)| (port(node), port(child))) {
        Some((Some(node), Some(child))) => Ok(PublishedPort { node: node.into(), child: child.into() }),
        _ => Err("write it like 8080:80, the node's port first".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{PublishedPort, parse_bind, parse_millicores, parse_publish};

    #[test]
    fn ports_are_published_by_number() {
        assert_eq!(parse_publish("8080:80"), Ok(PublishedPort { node: 8080, child: 80 }));
        for wrong in ["8080", "0:80", "8080:0", "65536:80", "a:b", "1:2:3"] {
            assert!(parse_publish(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn processors_may_be_fractions() {
        assert_eq!((parse_millicores("0.5"), parse_millicores("2")), (Ok(500), Ok(2000)));
        for wrong in ["0", "-1", "NaN", "inf", "many", "1e9"] {
            assert!(parse_millicores(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_bind_has_two_absolute_paths() {
        let bind = parse_bind("/data:/mnt/data").unwrap();
        assert_eq!((bind.from.as_str(), bind.to.as_str()), ("/data", "/mnt/data"));
        for wrong in ["/data", "data:/x", "/data:x", ":"] {
            assert!(parse_bind(wrong).is_err(), "{wrong}");
        }
    }
}
