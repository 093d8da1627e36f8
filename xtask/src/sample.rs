//! `cargo xtask sample`: writes the demo's sample input, a table of invented legal districts in
//! the shape of the public one (EUC-KR, tab separated, a header line). The same bytes every time.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::process::root;

const PATH: &str = "crates/hub/samples/legal-districts.euckr.tsv";
const HEADER: &str = "법정동코드\t법정동명\t폐지여부";
const RECORDS: usize = 5_000;
const SEED: u64 = 0x7061_6261_6c00_0001;
const IN_USE_PERCENT: u64 = 45;

/// Writes the file.
pub(crate) fn run() -> Result<()> {
    let path = root().join(PATH);
    let folder = path.parent().context("the sample lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    fs::write(&path, file()?).with_context(|| format!("{} cannot be written", path.display()))?;
    println!("{PATH}: {RECORDS} records");
    Ok(())
}

/// The whole file.
fn file() -> Result<Vec<u8>> {
    let mut text = format!("{HEADER}\n");
    for record in records() {
        let state = if record.in_use { "존재" } else { "폐지" };
        text += &format!("{}\t{}\t{state}\n", record.code, record.name);
    }
    let (bytes, _, replaced) = encoding_rs::EUC_KR.encode(&text);
    ensure!(!replaced, "a name has a character that EUC-KR lacks");
    // `encoding_rs` also knows the syllables that Microsoft added; a strict reader does not.
    let strict = bytes.split(|byte| byte.is_ascii()).flatten().all(|byte| *byte >= 0xA1);
    ensure!(strict, "a name has a syllable outside of strict EUC-KR");
    Ok(bytes.into_owned())
}

struct Record {
    code: String,
    name: String,
    in_use: bool,
}

/// Provinces, in them districts, in them towns, in some of them villages; in the order of codes.
fn records() -> Vec<Record> {
    let mut random = Random(SEED);
    let mut records = Vec::with_capacity(RECORDS);
    let mut province = 0;
    while records.len() < RECORDS {
        province += 1;
        let province_code = 20 + province;
        let province_name = random.name(&["도", "광역시", "특별자치도"]);
        push(&mut records, &mut random, format!("{province_code}00000000"), &province_name);
        for district in 1..=random.between(9, 24) {
            let district_code = format!("{province_code}{:03}", district * 10);
            let district_name = format!("{province_name} {}", random.name(&["시", "군", "구"]));
            push(&mut records, &mut random, format!("{district_code}00000"), &district_name);
            towns(&mut records, &mut random, &district_code, &district_name);
        }
    }
    records.truncate(RECORDS);
    records
}

/// Fills one district; most are small, a few have hundreds of entries.
fn towns(records: &mut Vec<Record>, random: &mut Random, district_code: &str, district: &str) {
    let size = match random.between(1, 10) {
        1 | 2 => 0,
        3..=6 => random.between(1, 12),
        7..=9 => random.between(13, 60),
        _ => random.between(90, 240),
    };
    let (mut town, mut left) = (100, size);
    while left > 0 {
        town += 1;
        left -= 1;
        let rural = random.between(1, 4) == 1;
        let kinds: &[&str] = if rural { &["읍", "면"] } else { &["동"] };
        let name = format!("{district} {}", random.name(kinds));
        push(records, random, format!("{district_code}{town}00"), &name);
        if !rural {
            continue;
        }
        let villages = random.between(1, 12).min(left);
        left -= villages;
        for village in 1..=villages {
            let name = format!("{name} {}", random.name(&["리"]));
            let code = format!("{district_code}{town}{:02}", 20 + village);
            push(records, random, code, &name);
        }
    }
}

fn push(records: &mut Vec<Record>, random: &mut Random, code: String, name: &str) {
    records.push(Record {
        code,
        name: name.to_owned(),
        in_use: random.between(1, 100) <= IN_USE_PERCENT,
    });
}

/// SplitMix64: a few lines of our own, so that no new version of a library changes the file.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.between(0, from.len() as u64 - 1) as usize]
    }

    /// A place name nobody has to recognise: two or three syllables and what kind of place it is.
    fn name(&mut self, kinds: &[&'static str]) -> String {
        const FIRST: [&str; 24] = [
            "가", "나", "너", "다", "두", "라", "마", "모", "바", "보", "새", "소", "솔", "아",
            "여", "온", "잔", "참", "초", "콩", "큰", "푸", "하", "흰",
        ];
        const MIDDLE: [&str; 12] =
            ["람", "래", "루", "미", "벼", "비", "슬", "엄", "울", "찬", "터", "해"];
        const LAST: [&str; 16] = [
            "결", "굽", "내", "늘", "담", "들", "뜰", "마", "몰", "벌", "빛", "샘", "실", "재",
            "터", "티",
        ];
        let middle = if self.between(1, 3) == 1 { self.pick(&MIDDLE) } else { "" };
        let (first, last) = (self.pick(&FIRST), self.pick(&LAST));
        format!("{first}{middle}{last}{}", self.pick(kinds))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn the_committed_sample_is_what_the_generator_writes() {
        let committed = fs::read(root().join(PATH)).unwrap();
        assert!(committed == file().unwrap(), "{PATH} differs: run `cargo xtask sample`");
    }

    #[test]
    fn the_sample_has_the_shape_of_the_public_table() {
        let records = records();
        assert_eq!(records.len(), RECORDS);
        let codes: BTreeSet<&str> = records.iter().map(|record| &*record.code).collect();
        assert_eq!(codes.len(), RECORDS, "codes are unique");
        assert!(codes.iter().all(|code| code.len() == 10));
        let in_use = records.iter().filter(|record| record.in_use).count();
        assert!((2_000..2_500).contains(&in_use), "{in_use} in use");
        let mut groups = BTreeMap::<&str, usize>::new();
        for code in codes {
            *groups.entry(&code[..5]).or_default() += 1;
        }
        let (smallest, largest) = (groups.values().min(), groups.values().max());
        assert_eq!(smallest, Some(&1));
        assert!(largest > Some(&100), "{largest:?}");
    }
}
