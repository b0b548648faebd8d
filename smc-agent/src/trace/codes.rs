//! Why connections fall back: the codes of `net/smc/smc_clc.h` (`SMC_CLC_DECL_*`) and Alibaba's additions.

/// A code with its name, without the prefix `SMC_CLC_DECL_`.
const CODES: &[(u32, &str)] = &[
    (0x0101_0000, "MEM"),
    (0x0201_0000, "TIMEOUT_CL"),
    (0x0202_0000, "TIMEOUT_AL"),
    (0x0300_0000, "CNFERR"),
    (0x0301_0000, "PEERNOSMC"),
    (0x0301_0001, "ALIBABA_SOCKOPT"),
    (0x0302_0000, "IPSEC"),
    (0x0303_0000, "NOSMCDEV"),
    (0x0303_0001, "NOSMCDDEV"),
    (0x0303_0002, "NOSMCRDEV"),
    (0x0303_0003, "NOISM2SUPP"),
    (0x0303_0004, "NOV2EXT"),
    (0x0303_0005, "NOV2DEXT"),
    (0x0303_0006, "NOSEID"),
    (0x0303_0007, "NOSMCD2DEV"),
    (0x0303_0008, "NOUEID"),
    (0x0303_0009, "RELEASEERR"),
    (0x0303_000a, "MAXCONNERR"),
    (0x0303_000b, "MAXLINKERR"),
    (0x0303_000c, "ALIBABA_VENDOR"),
    (0x0304_0000, "MODEUNSUPP"),
    (0x0305_0000, "RMBE_EC"),
    (0x0306_0000, "OPTUNSUPP"),
    (0x0307_0000, "DIFFPREFIX"),
    (0x0308_0000, "GETVLANERR"),
    (0x0309_0000, "ISMVLANERR"),
    (0x030a_0000, "NOACTLINK"),
    (0x030b_0000, "NOSRVLINK"),
    (0x030c_0000, "VERSMISMAT"),
    (0x030d_0000, "MAX_DMB"),
    (0x030e_0000, "NOROUTE"),
    (0x030f_0000, "NOINDIRECT"),
    (0x0400_0000, "SYNCERR"),
    (0x0500_0000, "PEERDECL"),
    (0x0999_0000, "INTERR"),
    (0x0999_0001, "ERR_RTOK"),
    (0x0999_0002, "ERR_RDYLNK"),
    (0x0999_0003, "ERR_REGBUF"),
    (0x0999_0004, "ALIBABA_CREDITS"),
];

/// The name of a code; `None` for codes that Linux does not have (other systems use their own).
pub fn name(code: u32) -> Option<&'static str> {
    CODES.binary_search_by_key(&code, |(code, _)| *code).ok().map(|index| CODES[index].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_and_found() {
        assert!(CODES.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(name(0x0301_0000), Some("PEERNOSMC"));
        assert_eq!(name(0x0999_0004), Some("ALIBABA_CREDITS"));
        assert_eq!(name(0), None);
    }
}
