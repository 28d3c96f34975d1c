import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import type { ImageConfig } from '../../../../src/worker/images/image.ts'
import { openCgroups } from '../../../../src/worker/drivers/oci/cgroups/open-cgroups.ts'
import type { Secret } from '../../../../src/domain/spec/secrets.ts'
import { sandboxEnvironment } from '../../../../src/worker/drivers/oci/environment.ts'
import { workloadCommand } from '../../../../src/worker/drivers/shared/desired-run.ts'
import { assertMachineUsable } from '../../../../src/worker/drivers/oci/run/runtime/probe.ts'
import { clampRlimits, parseHardLimits } from '../../../../src/worker/drivers/oci/users/rlimits.ts'
import { findRuntime, hideHostFolders } from '../../../../src/worker/drivers/oci/run/runtime/runtime.ts'
import { resolveUser } from '../../../../src/worker/drivers/oci/rootfs/users.ts'
import { DEFAULT_SPEC_FOR_TESTS as spec } from '../../../support/spec.ts'

const image: ImageConfig = {
  env: ['PATH=/image', 'A=1', 'broken'],
  entrypoint: ['entry'],
  cmd: ['cmd'],
  workdir: null,
  user: null,
}

test('a process sees the placeholder of a secret as a default, in place of a variable of the image', () => {
  const secret = { env_var: 'KEY', placeholder: '$MSB_KEY' } as Secret // the rest of a secret is not for the sandbox
  const withSecret = { ...spec, network: { ...spec.network, secrets: [secret] } }
  const env = sandboxEnvironment(withSecret, { ...image, env: ['KEY=of-the-image'] }, '/')
  assert.ok(env.includes('KEY=$MSB_KEY') && !env.includes('KEY=of-the-image'))
})

test("the spec's environment overrides the image's, and the scripts come first on PATH", () => {
  const env = sandboxEnvironment({ ...spec, env: [{ key: 'A', value: '2' }] }, image, '/home/x')
  assert.deepEqual(env.toSorted(), ['A=2', 'HOME=/home/x', 'PATH=/.msb/scripts:/image'])
})

test('variables name the certificates of the machine for programs that read no bundle, unless the spec has its own', () => {
  const trusting = { ...spec, network: { ...spec.network, trust_host_cas: true } }
  const own = [{ key: 'SSL_CERT_FILE', value: '/own.pem' }]
  const env = sandboxEnvironment({ ...trusting, env: own }, image, '/')
  assert.ok(env.includes('SSL_CERT_FILE=/own.pem') && env.includes('NODE_EXTRA_CA_CERTS=/.msb/tls/ca.pem'))
  assert.ok(!sandboxEnvironment(spec, image, '/').some((item) => item.includes('/.msb/tls')))
})

test("without a command in the spec no workload runs, even if the image has one; the spec's command follows the entrypoint", () => {
  assert.equal(workloadCommand(spec, image), null)
  const withCmd = { ...spec, runtime: { ...spec.runtime, cmd: ['a', 'b'] } }
  assert.deepEqual(workloadCommand(withCmd, image), ['entry', 'a', 'b'])
  assert.deepEqual(workloadCommand({ ...spec, runtime: { ...withCmd.runtime, entrypoint: ['own'] } }, image), [
    'own',
    'a',
    'b',
  ])
})

test('a user is resolved by name, number and group, and an unknown one is named', () => {
  const files = {
    passwd: 'root:x:0:0::/root:\nalice:x:1000:1001::/home/alice:\n',
    group: 'alice:x:1001:\nstaff:x:50:bob,alice\n',
  }
  assert.deepEqual(resolveUser('alice', files), { uid: 1000, gid: 1001, additionalGids: [50], home: '/home/alice' })
  assert.deepEqual(resolveUser('1000:staff', files), { uid: 1000, gid: 50, additionalGids: [], home: '/home/alice' })
  assert.deepEqual(resolveUser('4242', files), { uid: 4242, gid: 0, additionalGids: [], home: '/' })
  assert.deepEqual(resolveUser(null, files), { uid: 0, gid: 0, additionalGids: [], home: '/root' })
  assert.match(JSON.stringify(resolveUser('carol', files)), /'carol'/)
  assert.match(JSON.stringify(resolveUser('alice:none', files)), /'none'/)
  assert.match(JSON.stringify(resolveUser('70000', files)), /65536/)
})

test('rlimits are lowered to what the machine allows and never raised', () => {
  const allowed = parseHardLimits(
    'Max open files            1024                 20000                files     \nMax core file size        0                    unlimited            bytes\n',
  )
  assert.deepEqual(allowed, { nofile: 20_000 })
  const { rlimits, clamped } = clampRlimits(
    [
      { resource: 'nofile', soft: 30_000, hard: 50_000 },
      { resource: 'core', soft: 5, hard: 6 },
      { resource: 'cpu', soft: 2 ** 64, hard: 2 ** 64 },
    ],
    allowed,
  )
  assert.deepEqual(rlimits[0], { resource: 'nofile', soft: 20_000, hard: 20_000 })
  assert.deepEqual(rlimits[1], { resource: 'core', soft: 5, hard: 6 })
  assert.equal(rlimits[2]?.hard, Number.MAX_SAFE_INTEGER)
  assert.deepEqual(clamped, ['nofile 50000 to 20000'])
})

test('a machine without any OCI runtime is refused with the names of the programs that were searched', async () => {
  await assert.rejects(
    findRuntime({ name: null, searchPath: '/nonexistent', stateDir: '/nonexistent', initBinary: '/nonexistent' }),
    /kata-runtime, runsc, crun, runc/,
  )
})

test('a runtime that fails its trial is not used, and its own message is reported', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'runtimes-'))
  const script = (version: string): string =>
    `#!/bin/sh\n[ "$1" = --version ] && echo '${version}' && exit\necho broken >&2; exit 3\n`
  writeFileSync(join(folder, 'runsc'), script('runsc version release-20990101.0'), { mode: 0o755 })
  writeFileSync(join(folder, 'crun'), script('crun version 1.99'), { mode: 0o755 })
  const choice = { searchPath: folder, stateDir: join(folder, 'state'), initBinary: '/nonexistent' }
  const found = await findRuntime({ ...choice, name: null })
  assert.equal(found.name, 'crun')
  assert.match(found.unusable.join(), /^runsc 20990101.0 ran no sandbox when it was tried/)
  await assert.rejects(findRuntime({ ...choice, name: 'runsc' }), /ran no sandbox when it was tried/)
  writeFileSync(join(folder, 'runsc'), script('runsc version 0.0~20221219.0'), { mode: 0o755 })
  assert.match((await findRuntime({ ...choice, name: null })).unusable.join(), /too old/)
  rmSync(folder, { recursive: true })
})

test('runc is used only if root may set the limits of the processes of others', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'runtimes-'))
  t.after(() => rmSync(folder, { recursive: true }))
  const put = (version: string): void =>
    writeFileSync(join(folder, 'runc'), `#!/bin/sh\necho runc version ${version}\n`, { mode: 0o755 })
  const find = () => findRuntime({ name: 'runc', searchPath: folder, stateDir: folder, initBinary: '/nonexistent' })
  put('1.1.15')
  await assert.rejects(find(), /1\.2 is needed/)
  put('1.3.6')
  const { status } = spawnSync('sh', ['-c', 'sleep 5 & trap "kill $!" EXIT; prlimit --pid $! --nice=40:40'])
  if (status === 0) assert.equal((await find()).name, 'runc')
  else await assert.rejects(find(), /runc 1\.3\.6 needs CAP_SYS_RESOURCE/)
})

test('a message for an owner names no folder of the worker, and is otherwise unchanged', () => {
  const message = 'open `/var/lib/s/runs/1/exec-a/0.json`: /var/lib/s/runs/1 and /etc/passwd: No such file'
  assert.equal(
    hideHostFolders(message, ['/var/lib/s/runs/1', '/']),
    'open `…/exec-a/0.json`: … and /etc/passwd: No such file',
  )
})

test('on cgroup v2, the limits are set on the run’s cgroup, above the runtime’s', async () => {
  const mountPoint = mkdtempSync(join(tmpdir(), 'cgroup2-'))
  writeFileSync(join(mountPoint, 'cgroup.controllers'), 'cpu io memory pids')
  const parent = join(mountPoint, 'sandyard/x')
  const run = join(parent, 'run')
  mkdirSync(run, { recursive: true })
  writeFileSync(join(run, 'memory.swap.max'), 'max')
  writeFileSync(join(run, 'io.weight'), 'default 100')
  writeFileSync(join(parent, 'io.max'), '')
  const cgroups = await openCgroups('sandyard/x', { memoryBytes: 4096, pids: 99 }, mountPoint)
  assert.deepEqual(cgroups.lacks, ['disk weights (io.weight)'])
  cgroups.create('run', { memoryBytes: 1024, vcpus: 0.5, pids: 7 })
  const read = (name: string): string => readFileSync(join(run, name), 'utf8')
  assert.deepEqual(['memory.max', 'memory.swap.max', 'cpu.max', 'cpu.weight', 'pids.max', 'io.weight'].map(read), [
    '1024',
    '0',
    '50000 100000',
    '50',
    '7',
    '50',
  ])
  assert.equal(read('../memory.max'), '4096')
  assert.equal(read('../pids.max'), '99')
  assert.equal(readFileSync(join(parent, 'cgroup.subtree_control'), 'utf8'), '+io')
  await cgroups.throttleDisk('run', 7 * 256 + 12, { bytesPerSec: 1_000_000, iops: null })
  assert.equal(read('io.max'), '7:12 rbps=1000000 wbps=1000000 riops=max wiops=max')
  assert.equal(cgroups.runtimePath('run'), '/sandyard/x/run/c')
  mkdirSync(join(run, 'c'))
  const owned = ['cgroup.procs', 'cgroup.threads', 'cgroup.subtree_control']
  for (const file of [...owned, 'memory.max']) writeFileSync(join(run, 'c', file), '')
  assert.deepEqual([cgroups.initFlaw, await cgroups.createForInit('run', process.getuid?.() ?? 0)], [null, []])
  assert.equal(read('c/cgroup.max.descendants'), '1024')
  assert.equal(cgroups.memoryKills('run'), null)
  writeFileSync(join(run, 'memory.events'), 'low 0\noom 2\noom_kill 1\n')
  assert.equal(cgroups.memoryKills('run'), 1)
  writeFileSync(join(run, 'cgroup.procs'), '12\n13\n')
  assert.deepEqual(await cgroups.pids('run'), [12, 13])
  assert.ok(existsSync(join(mountPoint, 'sandyard/cgroup.subtree_control')))
  rmSync(mountPoint, { recursive: true })
})

test('on cgroup v1, an init needs the hierarchy of version 2', async () => {
  const mountPoint = mkdtempSync(join(tmpdir(), 'cgroup1-'))
  for (const controller of ['pids', 'memory', 'cpu']) mkdirSync(join(mountPoint, controller))
  const open = (): ReturnType<typeof openCgroups> =>
    openCgroups('sandyard/x', { memoryBytes: 4096, pids: 99 }, mountPoint)
  assert.match((await open()).initFlaw ?? '', /^no hierarchy of cgroup version 2 is mounted at .*\/unified$/)
  mkdirSync(join(mountPoint, 'unified'))
  writeFileSync(join(mountPoint, 'unified/cgroup.controllers'), '')
  assert.equal((await open()).initFlaw, null)
  rmSync(mountPoint, { recursive: true })
})

test('a machine that lacks a program is refused with its name', () => {
  assert.throws(() => {
    assertMachineUsable('/nonexistent/init')
  }, /the init program \/nonexistent\/init is missing/)
})
