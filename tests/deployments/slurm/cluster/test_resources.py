"""What a job may ask for: words as sbatch takes them, and options that replace none of ours."""

import pytest
from pydantic import ValidationError

from deployments.slurm.cluster.site import OURS, Resources


def refused(**facts: object) -> str:
    with pytest.raises(ValidationError) as error:
        Resources.model_validate(facts)
    return str(error.value)


@pytest.mark.parametrize("option", sorted(OURS))
def test_an_extra_option_replaces_none_of_ours(option):
    assert f"--{option} is set by Ratchet" in refused(extra_sbatch_lines=[f"--{option}=1"])
    assert "is set by Ratchet" in refused(extra_sbatch_lines=[f"--{option}"])


@pytest.mark.parametrize(
    "abbreviation", ["--part=x", "--p=x", "--job=x", "--outp=x", "--sig=B:TERM", "--req", "--arr=1-9"]
)
def test_sbatch_takes_any_unique_beginning_so_those_are_refused_too(abbreviation):
    assert "is set by Ratchet" in refused(extra_sbatch_lines=[abbreviation])


@pytest.mark.parametrize(
    "line",
    [
        "-p gpu",
        "-pgpu",
        "mem-bind=local",
        "",
        "--",
        "--mem-bind local",
        "--comment=x --partition=secret",
        "--comment=x\t--partition=secret",
        "--comment='x' --requeue",
        "--comment='unbalanced",
        "--comment=x\n#SBATCH --partition=secret",
        "--comment=x\r--partition=secret",
        "--comment=x\x0b--partition=secret",
        "--comment=x\u2028--partition=secret",
        "$(touch x)",
        "--mem_bind=local",
    ],
)
def test_an_extra_line_is_one_long_option(line):
    assert refused(extra_sbatch_lines=[line])


@pytest.mark.parametrize(
    "line", ["--mem-bind=local", "--exclusive", "--nodelist=n1", "--comment='two words'", "--licenses=a:1,b:2"]
)
def test_other_options_are_kept_as_they_were_written_however_often_they_are_read(line):
    once = Resources.model_validate({"extra_sbatch_lines": [line]})
    again = Resources.model_validate(once.model_dump())
    assert once.extra_sbatch_lines == again.extra_sbatch_lines == [line]


@pytest.mark.parametrize("field", ["partition", "account", "qos", "gpu_model", "constraint", "reservation"])
@pytest.mark.parametrize("value", ["a b", "a\nb", 'a"b', "a'b", "$(x)", "a;b", "a`b`", "a\\b", "a#b", "é"])
def test_a_word_is_one_word(field, value):
    assert field in refused(**{field: value}) and "one word" in refused(**{field: value})


@pytest.mark.parametrize("value", ["", "gpu", "gpu,long", "a100&nvlink", "[rack1|rack2]*2", "node-[1-4]", "user@site"])
def test_words_as_sbatch_takes_them_pass(value):
    assert Resources(constraint=value, partition=value, exclude=[value]).constraint == value


def test_numbers_have_their_limits():
    for field, value in {
        "time_limit_minutes": 0,
        "cpus": 0,
        "memory_gb": -1,
        "memory_cap_gb": 0,
        "gpus": -1,
        "lead_seconds": 0,
    }.items():
        assert field in refused(**{field: value})


@pytest.mark.parametrize("name", ["A B", "A=1", "1A", "A,B", "", "A;touch x"])
def test_passed_environment_is_names(name):
    assert "pass_environment" in refused(pass_environment=[name])


def test_setup_lines_are_lines():
    assert Resources(setup_lines=["module load cuda; export A='$B'"]).setup_lines
    for line in ("a\nb", "a\0b", "a\rb"):
        assert "one line" in refused(setup_lines=[line])


def test_every_field_has_a_title_and_a_description_for_the_form():
    for name, field in Resources.model_fields.items():
        assert field.title and field.description, name
