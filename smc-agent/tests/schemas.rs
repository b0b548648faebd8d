//! The JSON that the commands write has the form of the schemas in `docs/schema`, which programs are written against.

use std::path::Path;

use schemars::{Schema, schema_for};
use smc_agent::{
    convert::{ConvertRecord, ConvertStatus},
    daemon::{Reload, Status},
    enforce::{Detached, PolicyRecord},
    features::Report,
    tail::counts::Top,
    trace::{
        Event, EventStats,
        codes::{CodeList, Explanation},
    },
};

fn check(name: &str, schema: &Schema) -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/schema/{name}.schema.json"));
    let text = serde_json::to_string_pretty(schema)? + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, &text)?;
    }
    let checked_in = std::fs::read_to_string(&path)?;
    assert_eq!(checked_in, text, "run this test with UPDATE_SCHEMA=1 and commit {}", path.display());
    Ok(())
}

#[test]
fn the_checked_in_schemas_are_those_of_the_types() -> Result<(), Box<dyn std::error::Error>> {
    check("status", &schema_for!(Status))?;
    check("event", &schema_for!(Event))?;
    check("event-stats", &schema_for!(EventStats))?;
    check("code", &schema_for!(Explanation))?;
    check("code-list", &schema_for!(CodeList))?;
    check("top", &schema_for!(Top))?;
    check("reload", &schema_for!(Reload))?;
    check("detach", &schema_for!(Detached))?;
    check("convert-status", &schema_for!(ConvertStatus))?;
    check("convert-record", &schema_for!(ConvertRecord))?;
    check("features", &schema_for!(Report))?;
    check("policy-record", &schema_for!(PolicyRecord))
}
