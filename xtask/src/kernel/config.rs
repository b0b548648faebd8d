//! Kernel configurations: whether what a fragment asks for is what came out.

use std::collections::BTreeMap;

/// Options by name; an option that is off has the value `n`.
fn parse(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| {
            let line = line.trim();
            match line.strip_prefix("# ").and_then(|rest| rest.strip_suffix(" is not set")) {
                Some(name) => Some((name, "n")),
                None => line.starts_with("CONFIG_").then(|| line.split_once('='))?,
            }
        })
        .collect()
}

/// The options of a fragment that a configuration does not have as asked: `NAME=wanted (is found)`.
pub(super) fn unmet(fragment: &str, config: &str) -> Vec<String> {
    let config = parse(config);
    parse(fragment)
        .into_iter()
        .filter_map(|(name, wanted)| {
            let found = config.get(name).copied().unwrap_or("n");
            (found != wanted).then(|| format!("{name}={wanted} (is {found})"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_did_not_stick_are_named() {
        let fragment =
            "CONFIG_SMC=m\nCONFIG_SWAP=n\n# CONFIG_X is not set\nCONFIG_NR_CPUS=8\nCONFIG_GONE=y\n";
        let config = "CONFIG_SMC=y\n# CONFIG_SWAP is not set\nCONFIG_NR_CPUS=8\n";
        assert_eq!(unmet(fragment, config), ["CONFIG_GONE=y (is n)", "CONFIG_SMC=m (is y)"]);
        assert!(unmet(fragment, "CONFIG_SMC=m\nCONFIG_NR_CPUS=8\nCONFIG_GONE=y\n").is_empty());
    }
}
