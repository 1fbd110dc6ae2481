//! [`Template`]: a word of a command with variables in braces, such as `--threads={threads}`.

use std::collections::BTreeMap;

/// A text with variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(String),
}

/// The values of variables, by name.
pub(super) type Values = BTreeMap<String, String>;

impl Template {
    /// Parses a text. `{{` and `}}` stand for braces.
    ///
    /// # Errors
    /// A brace has no counterpart.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            literal += &rest[..at];
            let (brace, after) = rest[at..].split_at(1);
            if let Some(after) = after.strip_prefix(brace) {
                literal += brace;
                rest = after;
                continue;
            }
            let (name, after) = after
                .split_once('}')
                .filter(|(name, _)| brace == "{" && !name.contains('{'))
                .ok_or("a brace without its counterpart; write {{ or }} for a brace itself")?;
            parts.extend([Part::Text(std::mem::take(&mut literal)), Part::Variable(name.to_owned())]);
            rest = after;
        }
        parts.push(Part::Text(literal + rest));
        parts.retain(|part| *part != Part::Text(String::new()));
        Ok(Self(parts))
    }

    /// The names of the variables.
    pub(super) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Variable(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// The text with the values of its variables. All of them must have one.
    pub(super) fn render(&self, values: &Values) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Variable(name) => values[name].clone(),
        };
        self.0.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Template, Values};

    #[test]
    fn variables_are_replaced_and_doubled_braces_are_kept() {
        let values: Values = [("a", "1"), ("address.n1", "10.0.0.1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("{a}", "1"),
            ("--x={a}{a}:{address.n1}", "--x=11:10.0.0.1"),
            ("awk '{{print $1}}'", "awk '{print $1}'"),
            ("{{{a}}}", "{1}"),
        ] {
            assert_eq!(Template::parse(text).unwrap().render(&values), expected, "{text}");
        }
        let template = Template::parse("{a} {{b}} {address.n1}").unwrap();
        assert_eq!(template.variables().collect::<Vec<_>>(), ["a", "address.n1"]);
        for text in ["{", "}", "{a", "a}", "{{a}", "{a{b}}"] {
            Template::parse(text).expect_err(text);
        }
    }
}
