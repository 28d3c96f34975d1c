import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import type { OciRunRecord } from '../../../../src/worker/drivers/oci/run/run-records.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { readyIn } from '../../../support/warm-up.ts'
import { makeSeededChoices } from '../../../fault/seeded-choices.ts'

const NEVER = new AbortController().signal
const SPECS = 8
const { runtime, network, resources } = DEFAULT_SPEC_FOR_TESTS
const skip = whyNoOci() ?? (testRuntime() === 'crun' ? false : 'only crun has warm sandboxes')

/**
 * Prints what a process of a sandbox can see of it: the first process, its rights and limits, all mounts, files with their
 * owners and contents, host name, users, devices and settings of the kernel. Numbers of devices, inodes and mounts are left out, and so
 * is the fork server, which a plain sandbox gets with its second command.
 */
const LOOK = String.raw`
sub slurp { open my $f, '<', $_[0] or return "unreadable: $!"; local $/; return <$f> // '' }
for my $pid (1, 'self') {
    print "$pid $_ ", (readlink("/proc/$pid/$_") // $!), "\n" for qw(cwd exe root);
    print "$pid $_ ", slurp("/proc/$pid/$_") =~ tr/\0/ /r, "\n" for qw(cmdline limits oom_score_adj cgroup setgroups);
    print map { "$pid $_\n" } grep { !/^(Vm|Rss|voluntary|nonvoluntary|Pid|PPid|Tgid|NS|State|SigQ|Hugetlb|Threads|Name|Cpus|Mems|FDSize|ShdPnd|Sig)/ } split /\n/, slurp("/proc/$pid/status");
    print "$pid map ", join(' ', (split ' ', slurp("/proc/$pid/uid_map"))[0, 2]), "\n";
}
print '1 environ ', slurp('/proc/1/environ') =~ tr/\0/\n/r, "\n";
for (split /\n/, slurp('/proc/self/mountinfo')) {
    my ($own, $type) = split / - /;
    my @own = split ' ', $own;
    print "mount $own[3] $own[4] $own[5] ", $type =~ s/\S*loop\d+/LOOP/r, "\n";
}
print "$_ ", slurp($_) for map { "/proc/sys/$_" } qw(kernel/hostname kernel/domainname net/ipv4/ip_unprivileged_port_start net/ipv4/ping_group_range);
print 'network ', join(' ', sort map { /^\s*(\w+):/ ? $1 : () } split /\n/, slurp('/proc/net/dev')), "\n";
opendir my $processes, '/proc';
print 'processes ', scalar(grep { /^\d+$/ && slurp("/proc/$_/cmdline") !~ /fork-server\.pl/ } readdir $processes), "\n";
sub walk {
    my ($path) = @_;
    my @stat = lstat $path or return;
    my $what = -l _ ? readlink $path : -f _ && $path =~ m{^/(etc|\.msb/scripts)/} ? slurp($path) : '';
    printf "file %s %o %d %d %d %s\n", $path, @stat[2, 4, 5], -f _ ? $stat[7] : 0, $what;
    return if !-d _ || -l $path || $path =~ m{^/(proc|\.msb/tools)$};
    opendir my $folder, $path or return;
    walk($path eq '/' ? "/$_" : "$path/$_") for sort grep { !/^\.\.?$/ } readdir $folder;
}
walk('/');
`

describe('a warm sandbox and a plain one', { skip, timeout: 300_000 }, () => {
  let fixture: OciFixture
  let driver: Driver
  before(async () => {
    fixture = await makeOciFixture()
  })
  after(() => fixture.remove())
  beforeEach(async () => {
    driver = await fixture.open({ warm: 2 })
  })
  afterEach(async () => {
    for (const { run_id, sandbox_id } of await driver.list()) {
      await driver.remove(run_id)
      await driver.discard(sandbox_id)
    }
    await driver.close()
    await waitUntil(async () => (await fixture.leftovers()).length === 0) // the kernel frees loop devices a moment later
  })

  for (let seed = 1; seed <= SPECS; seed++)
    test(`are the same to their owner (seed ${String(seed)})`, async () => {
      const spec = randomSpec(seed)
      const first = await startOf(spec) // the worker now knows the shape
      await waitUntil(() => readyIn(driver) > 0)
      const asked = ownFields(spec, seed)
      const warm = await startOf(asked)
      assert.notEqual(warm.record.container_id, undefined, JSON.stringify(asked))
      let plain = await startOf(asked)
      for (let tries = 1; plain.record.container_id !== undefined && tries < 6; tries++) plain = await startOf(asked)
      assert.equal(plain.record.container_id, undefined)
      const seen = await lookAt(warm)
      assert.deepEqual(seen, await lookAt(plain))
      assert.notDeepEqual(seen.inside, (await lookAt(first)).inside) // the look shows differences
    })

  async function startOf(spec: Partial<SandboxSpec>) {
    const desired = makeDesiredRun(spec)
    await driver.start(desired, NEVER)
    return { desired, record: readJson<OciRunRecord>(desired, 'state.json') }
  }
  function readJson<T>(desired: DesiredRun, name: string, folder: string = desired.run_id): T {
    return JSON.parse(readFileSync(join(fixture.dir, 'state/runs', folder, name), 'utf8')) as T // the driver's own file
  }
  /** What the sandbox shows, what its runtime was asked for, and the limits of its cgroup. */
  async function lookAt({ desired, record }: { readonly desired: DesiredRun; readonly record: OciRunRecord }) {
    const { stdout, stderr, code } = await fixture.exec(desired.run_id, ['perl', '-e', LOOK])
    assert.deepEqual({ code, stderr }, { code: 0, stderr: '' })
    const container = record.container_id ?? record.run_id
    const bundle = readFileSync(join(fixture.dir, 'state/runs', container, 'config.json'), 'utf8')
    const { hostname: _given, ...config } = JSON.parse(withoutNames(bundle, record)) as { readonly hostname: string }
    const cgroup = fixture.cpuCgroupOf(desired.run_id)
    const limits = ['cpu.cfs_quota_us', 'cpu.shares', 'cpu.max', 'cpu.weight', 'memory.max', 'pids.max'].map((name) => [
      name,
      ...[cgroup, cgroup.replace('/cpu/', '/memory/'), cgroup.replace('/cpu/', '/pids/')].map((dir) =>
        readOrEmpty(join(dir, name.replace('memory.max', 'memory.limit_in_bytes'))),
      ),
    ])
    const { facts, image, log_level, sample_interval_ms } = record
    return {
      inside: withoutShift(stdout, record.ids?.uid_shift ?? 0).split('\n'),
      config,
      limits,
      facts,
      image,
      log_level,
      sample_interval_ms,
      spec: record.spec,
      keys: Object.keys(record.started ?? {}),
    }
  }
})

/** Replaces in a configuration the names that differ from run to run. */
function withoutNames(bundle: string, record: OciRunRecord): string {
  const container = record.container_id ?? record.run_id
  return bundle
    .replaceAll(container, 'CONTAINER')
    .replaceAll(String(record.ids?.uid_shift ?? ''), '1')
    .replaceAll(/\/proc\/\d+\/fd\/\d+/g, 'USERNS')
}

/** Replaces the host's ids of a sandbox, which the options of mounts show, by its own. */
function withoutShift(text: string, shift: number): string {
  return text.replaceAll(/\b([ug]id=)(\d+)/g, (_all, name, id) => `${String(name)}${String(Number(id) % shift)}`)
}

function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

/** A spec with random values of the fields that make a shape. */
function randomSpec(seed: number): Partial<SandboxSpec> {
  const choices = makeSeededChoices(seed)
  const pick = <T>(...values: readonly T[]): T => choices.pick(values)
  return {
    env: pick(
      [],
      [{ key: 'A', value: 'b c' }],
      [
        { key: 'PATH', value: '/usr/bin' },
        { key: 'HOME', value: '/tmp' },
      ],
    ),
    resources: { memory_mib: pick(128, 256, 300), vcpus: 1, disk_size_mib: pick(64, 128) },
    rlimits: pick([], [{ resource: 'nofile', soft: 100, hard: 200 }], [{ resource: 'core', soft: 0, hard: 0 }]),
    security_profile: pick('default', 'restricted'),
    network: { ...network, enabled: pick(true, false), max_connections: pick(null, 7) },
    runtime: { ...runtime, user: pick('root', 'alice', '1000:50'), workdir: pick('/', '/home/alice', '/made/here') },
  }
}

/** The same shape with other values of what a run applies to a warm sandbox. */
function ownFields(spec: Partial<SandboxSpec>, seed: number): Partial<SandboxSpec> {
  const scripts = { [`script-${String(seed)}`]: 'echo hello', other: '#!/bin/sh\ntrue' }
  return {
    ...spec,
    pull_policy: 'always',
    labels: { seed: String(seed) },
    lifecycle: { ephemeral: true, idle_timeout_secs: 600, max_duration_secs: 900 },
    resources: { ...(spec.resources ?? resources), vcpus: 2 },
    runtime: {
      ...(spec.runtime ?? runtime),
      hostname: `host-${String(seed)}`,
      log_level: 'debug',
      metrics_sample_interval_ms: 2000,
      scripts,
      shell: '/bin/dash',
    },
  }
}
