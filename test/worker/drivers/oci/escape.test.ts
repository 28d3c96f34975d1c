import assert from 'node:assert/strict'
import { existsSync, mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { Patch, SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import type { CommandResult } from '../../../../src/lib/run-command.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { attack } from '../../../support/security-attack.ts'

const isGvisor = testRuntime() === 'runsc'
/** Skips tests of the shared kernel under gVisor, where each sandbox has its own kernel and may change its state. */
const ownKernel = isGvisor ? 'gVisor answers for its own kernel, not for the machine’s' : null
const otherKernel = process.arch === 'x64' ? ownKernel : 'the numbers of the calls are those of x64'
const FACTS = { target: 'host', attacker: 'root in a sandbox', finding: null } as const
const PATCHES = { ...FACTS, attacker: 'a tenant who writes the patches' } as const
const NEVER = new AbortController().signal
let fixture: OciFixture
let driver: Driver
let box: DesiredRun

describe('out of a sandbox of the oci driver', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  before(async () => {
    fixture = await makeOciFixture()
    driver = await fixture.open()
    box = await start()
  })
  after(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  })

  attack('gets mounts, namespaces or devices, or changes the kernel', FACTS, () =>
    allRefused({
      'a mount': 'mount -t tmpfs none /tmp',
      'a bind mount': 'mount --bind /proc /tmp',
      'an unmount of what covers a masked path': 'umount /proc/keys',
      'a new mount namespace': 'unshare -m true',
      'a new network namespace': 'unshare -n true',
      'a block device': `mknod /tmp/disk b 254 0${isGvisor ? ' && head -c 1 /tmp/disk' : ''}`,
      'the memory device': `mknod /tmp/mem c 1 1${isGvisor ? ' && head -c 1 /tmp/mem' : ''}`,
      'a sysctl': 'echo 1 >/proc/sys/kernel/panic',
      'the host name': 'hostname other',
      sysrq: 'echo h >/proc/sysrq-trigger',
      'the clock': 'date -s 2001-01-01',
      'the init program': 'echo x >/.msb/init',
      'the system folder': 'mkdir /sys/x',
    }),
  )

  attack('gets a user namespace, forwards packets, or escapes the memory killer', { ...FACTS, skip: ownKernel }, () =>
    allRefused({
      'a new user namespace': 'unshare -U true',
      'a sysctl of its own network': 'echo 1 >/proc/sys/net/ipv4/ip_forward',
      'a lower score for the memory killer': 'echo -1000 >/proc/1/oom_score_adj',
    }),
  )

  attack('reads kernel memory, kernel addresses, keys or the log of the kernel', FACTS, async () => {
    const paths = ['kcore', 'kallsyms', 'keys', 'kmsg', 'timer_list', 'vmallocinfo'].map((name) => `/proc/${name}`)
    for (const path of paths) {
      assert.equal((await inside(box, `head -c 16 ${path} 2>/dev/null | wc -c`)).stdout.trim(), '0', path)
    }
    return { tries: paths.length, outcome: `0 bytes were read from ${String(paths.length)} files of /proc` }
  })

  attack('sees the cgroups, devices or processes of the host', FACTS, async () => {
    assert.equal((await inside(box, 'ls /sys')).stdout, '')
    assert.doesNotMatch((await inside(box, 'cat /proc/self/mounts')).stdout, /cgroup|sysfs|\/dev\/vda \/ /)
    assert.doesNotMatch((await inside(box, 'cat /proc/self/cgroup')).stdout, /sandyard/)
    const pids = (await inside(box, 'ls -d /proc/[0-9]*')).stdout.trim().split('\n')
    assert.ok(pids.length < 6, pids.join(' '))
    const devices = (await inside(box, 'ls /dev')).stdout.trim().split('\n').toSorted()
    if (isGvisor)
      assert.deepEqual(
        devices.filter((name) => /^(kvm|mem|kmem|vd|sd|loop|nvme)/.test(name)),
        [],
      )
    else
      assert.deepEqual(devices, [
        'core',
        'fd',
        'full',
        'mqueue',
        'null',
        'ptmx',
        'pts',
        'random',
        'shm',
        'stderr',
        'stdin',
        'stdout',
        'tty',
        'urandom',
        'zero',
      ])
    return {
      tries: 5,
      outcome: `${String(pids.length)} processes and ${String(devices.length)} entries of /dev were seen, all its own`,
    }
  })

  test('its user 0 is an unprivileged user of the machine, and owns the sandbox’s files', async () => {
    await inside(box, 'echo x >/root/mine')
    const [, inner, outer] = (await inside(box, 'cat /proc/self/uid_map')).stdout.trim().split(/\s+/).map(Number)
    assert.ok((outer ?? 0) >= 65_536, String(inner))
    assert.equal((await inside(box, 'stat -c %u:%g /root/mine /etc/hosts')).stdout, '0:0\n0:0\n')
  })

  attack('makes dangerous system calls', { ...FACTS, skip: otherKernel }, async () => {
    const call = async (number: number): Promise<string> =>
      (await run(box, ['perl', '-e', `syscall(${String(number)}, 0, 0, 0, 0, 0); print $!+0`])).stdout
    const [EPERM, ENOSYS] = ['1', '38']
    const refused = {
      keyctl: 250,
      bpf: 321,
      perf_event_open: 298,
      userfaultfd: 323,
      open_by_handle_at: 304,
      io_uring_setup: 425,
      kexec_load: 246,
      setns: 308,
      fsopen: 430,
      reboot: 169,
      quotactl: 179,
      init_module: 175,
      swapon: 167,
    }
    for (const [name, number] of Object.entries(refused)) assert.equal(await call(number), EPERM, name)
    assert.equal(await call(435), ENOSYS, 'clone3')
    assert.equal(await call(999), ENOSYS, 'unknown')
    assert.equal((await run(box, ['perl', '-e', 'socket(S, 40, 1, 0); print $!+0'])).stdout, ENOSYS, 'vsock')
    const cloneUser = 'my $pid = syscall(56, 0x10000000 | 17, 0, 0, 0, 0); print $!+0'
    assert.equal((await run(box, ['perl', '-e', cloneUser])).stdout, ENOSYS, 'clone with a user namespace')
    const tries = Object.keys(refused).length + 4
    return { tries, outcome: `each of ${String(tries)} calls was refused or looked absent` }
  })

  attack(
    'takes memory of the kernel that no limit counts, by groups of IPv6',
    { ...FACTS, skip: otherKernel },
    async () => {
      const group = 'pack("n8", 0xff02, (0) x 6, 9)'
      const address = `pack("S n N a16 N x100", 10, 0, 0, ${group}, 0)`
      const joins = {
        IPV6_ADD_MEMBERSHIP: `20, ${group} . pack("i", 1)`,
        MCAST_JOIN_GROUP: `42, pack("L x4", 1) . ${address}`,
        MCAST_JOIN_SOURCE_GROUP: `46, pack("L x4", 1) . ${address} . ${address}`,
      }
      const set = async (options: string): Promise<string> =>
        (await run(box, ['perl', '-e', `socket(S, 10, 2, 0); print setsockopt(S, ${options}) ? 'set' : $!+0`])).stdout
      const ENODEV = '19'
      for (const [name, option] of Object.entries(joins)) assert.equal(await set(`41, ${option}`), ENODEV, name)
      const others = {
        IPV6_UNICAST_HOPS: 16,
        IPV6_MULTICAST_HOPS: 18,
        IPV6_V6ONLY: 26,
        IPV6_RECVPKTINFO: 49,
        IPV6_TCLASS: 67,
      }
      for (const [name, number] of Object.entries(others))
        assert.equal(await set(`41, ${String(number)}, 1`), 'set', name)
      assert.equal(await set('0, 35, pack("C4 x4 L", 224, 0, 0, 9, 1)'), 'set', 'a group of IPv4')
      assert.equal(await set('1, 2, 1'), 'set', 'SO_REUSEADDR')
      return { tries: 3, outcome: 'a socket can join no group, and its other options work' }
    },
  )

  test('a default sandbox may gain privileges within itself; a restricted one may not, and has fewer', async () => {
    const restricted = await start({ security_profile: 'restricted' })
    const status = (await inside(restricted, 'cat /proc/self/status')).stdout
    if (!isGvisor) assert.match(status, /NoNewPrivs:\s+1/)
    assert.match(status, /CapBnd:\s+000000000000042b/)
    const ordinary = (await inside(box, 'cat /proc/self/status')).stdout
    if (!isGvisor) assert.match(ordinary, /NoNewPrivs:\s+0[^]*Seccomp:\s+2/)
    assert.notEqual((await inside(restricted, 'setpriv --reuid 1000 true')).code, 0)
    assert.equal((await inside(box, 'setpriv --reuid 1000 --clear-groups id -u')).stdout, '1000\n')
    await driver.stop(restricted.run_id, 0)
  })

  attack('writes to the host by a patch through a symlink of the image', PATCHES, async () => {
    const outside = join(fixture.dir, 'outside')
    mkdirSync(outside)
    const link: Patch = { type: 'symlink', target: outside, link: '/out', replace: false }
    const patches: readonly Patch[] = [
      link,
      { type: 'text', path: '/out/text', content: 'x', mode: null, replace: true },
      { type: 'mkdir', path: '/out/folder', mode: null },
      { type: 'append', path: '/out/append', content: 'x' },
      { type: 'text', path: '/escape/text', content: 'in /tmp', mode: null, replace: true },
      { type: 'text', path: '/../../../../up', content: 'x', mode: null, replace: true },
    ]
    const patched = await start({ patches })
    assert.deepEqual(
      [existsSync(join(outside, 'text')), existsSync('/up'), existsSync('/tmp/text')],
      [false, false, false],
    )
    assert.equal((await inside(patched, `cat ${outside}/text /up /tmp/text`)).stdout, 'xxin /tmp')
    await driver.stop(patched.run_id, 0)
    return { tries: patches.length, outcome: 'each patch changed files of the sandbox alone' }
  })

  attack('reads files of the host by a patch that copies', PATCHES, async () => {
    writeFileSync(join(fixture.dir, 'secret'), 'secret')
    symlinkSync(join(fixture.dir, 'secret'), join(fixture.volume, 'link'))
    symlinkSync('..', join(fixture.volume, 'up'))
    const sources = ['link', '../secret', 'up/secret', join(fixture.dir, 'secret')]
    for (const src of sources) {
      const patch: Patch = { type: 'copy_file', src, dst: '/stolen', mode: null, replace: true }
      await assert.rejects(
        start({ patches: [patch] }),
        (error) => error instanceof StartError && error.reason === 'patch',
        src,
      )
    }
    return { tries: sources.length, outcome: `each of ${String(sources.length)} starts failed and named the patch` }
  })

  test('all eight patches are applied in order, once, with owners and modes', async () => {
    mkdirSync(join(fixture.volume, 'tree/sub'), { recursive: true })
    writeFileSync(join(fixture.volume, 'tree/sub/file'), 'deep')
    symlinkSync('sub/file', join(fixture.volume, 'tree/link'))
    writeFileSync(join(fixture.volume, 'one'), 'copied', { mode: 0o750 })
    const patches: readonly Patch[] = [
      { type: 'text', path: '/made/by/text', content: 'text', mode: 0o600, replace: false },
      {
        type: 'file',
        path: '/bytes',
        content: Buffer.from([1, 2, 255]).toString('base64'),
        mode: null,
        replace: false,
      },
      { type: 'copy_file', src: 'one', dst: '/one', mode: null, replace: false },
      { type: 'copy_dir', src: '/tree', dst: '/tree', replace: false },
      { type: 'symlink', target: '/one', link: '/made/link', replace: false },
      { type: 'mkdir', path: '/made/folder', mode: 0o1777 },
      { type: 'append', path: '/etc/passwd', content: 'bob:x:1001:1001::/:/bin/sh\n' },
      { type: 'remove', path: '/home' },
      { type: 'text', path: '/etc/hosts', content: 'mine', mode: null, replace: true },
    ]
    const patched = await start({ patches })
    const script =
      'cat /made/by/text /made/link /tree/link /etc/hosts; stat -c " %a:%u" /made/by/text /one /made/folder; grep -c bob /etc/passwd; ls /home 2>&1; wc -c </bytes'
    const expected = /^textcopieddeepmine 600:0\n 750:0\n 1777:0\n1\n.*No such file or directory\n3\n$/
    assert.match((await inside(patched, script)).stdout, expected)
    await inside(patched, 'echo changed >/one')
    await driver.remove(patched.run_id)
    const again = makeDesiredRun({ patches }, patched.sandbox_id)
    await driver.start(again, NEVER)
    assert.equal((await inside(again, 'cat /one /etc/hosts; grep -c bob /etc/passwd')).stdout, 'changed\nmine1\n')
    await driver.stop(again.run_id, 0)
  })

  test('a patch that must not replace names the path that exists, and leaves no sandbox', async () => {
    const patch: Patch = { type: 'text', path: '/etc/passwd', content: 'x', mode: null, replace: false }
    const desired = makeDesiredRun({ patches: [{ type: 'mkdir', path: '/a', mode: null }, patch] })
    await assert.rejects(driver.start(desired, NEVER), /patch 1 \(text\): '\/etc\/passwd' exists/)
    assert.ok(!(await driver.listStored()).includes(desired.sandbox_id))
    assert.equal(
      statSync(join(fixture.layer, 'etc/passwd')).size,
      readFileSync(join(fixture.layer, 'etc/passwd')).length,
    )
  })

  attack('leaves symlinks and FIFOs for the worker to follow at the next start', FACTS, async () => {
    const desired = await start({ runtime: { ...makeDesiredRun().spec.runtime, scripts: { tool: 'echo tool' } } })
    await inside(
      desired,
      'rm -rf /etc/hosts /etc/resolv.conf; ln -s /../../../../../etc/shadow /etc/hosts; mkfifo /etc/resolv.conf; umask 0; ln -s /../../../../root /root/x',
    )
    const shadowBefore = statSync('/etc/shadow').mtimeMs
    await driver.remove(desired.run_id)
    const again = makeDesiredRun({}, desired.sandbox_id)
    await driver.start(again, NEVER)
    assert.match((await inside(again, 'cat /etc/hosts')).stdout, /localhost/)
    assert.equal(statSync('/etc/shadow').mtimeMs, shadowBefore)
    await driver.stop(again.run_id, 0)
    return { tries: 3, outcome: 'the next start replaced them, and /etc/shadow of the host is unchanged' }
  })
})

/** Runs each command in the sandbox. Rejects if one succeeds. */
async function allRefused(commands: Readonly<Record<string, string>>): Promise<{ tries: number; outcome: string }> {
  for (const [what, command] of Object.entries(commands))
    assert.notEqual((await inside(box, command)).code, 0, `it got or changed ${what}: ${command}`)
  const tries = Object.keys(commands).length
  return { tries, outcome: `each of ${String(tries)} commands failed` }
}

async function start(spec: Partial<SandboxSpec> = {}): Promise<DesiredRun> {
  const desired = makeDesiredRun(spec)
  await driver.start(desired, NEVER)
  return desired
}

async function inside(desired: DesiredRun, script: string): Promise<CommandResult> {
  return await run(desired, ['sh', '-c', script])
}

async function run(desired: DesiredRun, command: readonly string[]): Promise<CommandResult> {
  return await fixture.exec(desired.run_id, command)
}
