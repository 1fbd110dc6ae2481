//! [`WordTemplate`]: a word of a command with variables in braces, such as `--threads={threads}`.

use std::collections::BTreeMap;

/// A text with variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WordTemplate(Vec<TemplatePart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Variable(String),
}

/// The values of variables, by name.
pub(super) type Values = BTreeMap<String, String>;

impl WordTemplate {
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
            parts.extend([TemplatePart::Text(std::mem::take(&mut literal)), TemplatePart::Variable(name.to_owned())]);
            rest = after;
        }
        parts.push(TemplatePart::Text(literal + rest));
        parts.retain(|part| *part != TemplatePart::Text(String::new()));
        Ok(Self(parts))
    }

    /// A text without variables.
    pub(super) fn literal(text: impl Into<String>) -> Self {
        Self(vec![TemplatePart::Text(text.into())])
    }

    /// The names of the variables.
    pub(super) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            TemplatePart::Variable(name) => Some(name.as_str()),
            TemplatePart::Text(_) => None,
        })
    }

    /// The text with the values of its variables. All of them must have one.
    pub(super) fn render(&self, values: &Values) -> String {
        let text = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => text.clone(),
            TemplatePart::Variable(name) => values[name].clone(),
        };
        self.0.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Values, WordTemplate};

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
            assert_eq!(WordTemplate::parse(text).unwrap().render(&values), expected, "{text}");
        }
        let template = WordTemplate::parse("{a} {{b}} {address.n1}").unwrap();
        assert_eq!(template.variables().collect::<Vec<_>>(), ["a", "address.n1"]);
        for text in ["{", "}", "{a", "a}", "{{a}", "{a{b}}"] {
            WordTemplate::parse(text).expect_err(text);
        }
    }
}
