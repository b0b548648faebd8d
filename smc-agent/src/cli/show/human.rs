//! Numbers for people.

/// A count with four digits, as smc-tools write it: `200.7M`.
pub(in super::super) fn count(number: u64) -> String {
    scaled(number, 1000, &["", "K", "M", "G", "T", "P", "E"])
}

/// Bytes with four digits in steps of 1024: `512.0 KB`.
pub(in super::super) fn bytes(number: u64) -> String {
    scaled(number, 1024, &[" B", " KB", " MB", " GB", " TB", " PB", " EB"])
}

fn scaled(number: u64, step: u64, units: &[&str]) -> String {
    let mut unit = 0;
    let mut divisor = 1_u64;
    while unit + 1 < units.len() && number / divisor >= step {
        divisor = divisor.saturating_mul(step);
        unit += 1;
    }
    let whole = number / divisor;
    let decimals = match whole {
        _ if unit == 0 => 0,
        0..=9 => 3,
        10..=99 => 2,
        _ => 1,
    };
    let rest = u128::from(number % divisor) * 10_u128.pow(decimals) / u128::from(divisor);
    let digits = usize::try_from(decimals).unwrap_or_default();
    let point = if decimals == 0 { String::new() } else { format!(".{rest:0digits$}") };
    format!("{whole}{point}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_smc_tools_do() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(5076), "5.076K");
        assert_eq!(count(200_705_600), "200.7M");
        assert_eq!(count(1_194_173_445), "1.194G");
        assert_eq!(count(u64::MAX), "18.44E");
        assert_eq!(bytes(524_288), "512.0 KB");
        assert_eq!(bytes(1_048_576), "1.000 MB");
        assert_eq!(bytes(7), "7 B");
    }
}
