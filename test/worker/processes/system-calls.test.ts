import assert from 'node:assert/strict'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readlinkSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { open, readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { makeLog } from '../../../src/lib/log.ts'
import { CommandError, runCommand } from '../../../src/lib/run-command.ts'
import { makeCommandHelper } from '../../../src/worker/processes/command-helper.ts'
import { localHostCommands, SYSTEM_CALLS_SCRIPT } from '../../../src/worker/processes/system-calls.ts'

const isRoot = process.getuid?.() === 0
const helper = makeCommandHelper(makeLog('silent'))
const folder = mkdtempSync(`${tmpdir()}/sandyard-calls-`)
const LIMIT = { timeoutMs: 10_000 }
after(() => {
  helper.close()
  rmSync(folder, { recursive: true })
})

test('calls that may take minutes delay no others, however many there are', { timeout: 30_000 }, async () => {
  const pipe = join(folder, 'slow')
  await helper.commands.callSystem(['fifos', pipe])
  const copy = (at: number): Promise<void> =>
    helper.commands.callSystem(['copy', pipe, join(folder, `slow ${String(at)}`)], { timeoutMs: 600_000 })
  const copies = Promise.allSettled([1, 2, 3, 4, 5, 6].map(copy)) // each waits until somebody writes to the pipe
  await helper.commands.callSystem(['fifos', join(folder, 'quick')])
  const writer = await open(pipe, 'r+')
  const settled = await copies
  await writer.close()
  assert.ok(
    settled.every(({ status }) => status === 'rejected'),
    'a pipe has no holes',
  )
})

for (const [by, commands] of [
  ['a process that stays', helper.commands],
  ['a process of its own', localHostCommands],
] as const) {
  test(`a copy by ${by} has every byte of a sparse file and none of its holes`, async () => {
    const [from, to] = [join(folder, `from ${by}`), join(folder, `to ${by}`)]
    const size = 64 * 1024 * 1024 + 1234
    writeFileSync(from, '')
    truncateSync(from, size)
    const file = await open(from, 'r+')
    for (const at of [0, 4095, 4096, 1_000_000, 5 * 1024 * 1024 - 1, size - 3]) await file.write('abc', at)
    await file.write(Buffer.alloc(3_000_000), 0, 3_000_000, 20_000_000) // zeros that are written count as a hole too
    await file.close()
    await commands.callSystem(['copy', from, to])
    assert.ok((await readFile(from)).equals(await readFile(to)))
    const { blocks, mode } = statSync(to)
    assert.ok(blocks * 512 < 200_000, `${String(blocks)} blocks`)
    assert.equal(mode & 0o777, 0o600)
    await assert.rejects(commands.callSystem(['copy', from, to]), /File exists/)
  })

  test(`when the kernel refuses ${by}, the call fails with its message, and the next call is made`, async () => {
    const missing = join(folder, 'no', 'pipe')
    await assert.rejects(commands.callSystem(['fifos', missing]), (error) => {
      return error instanceof CommandError && error.message.includes(`${missing}: No such file or directory`)
    })
    const pipe = join(folder, `pipe ${by}`)
    writeFileSync(pipe, 'in the way')
    await commands.callSystem(['fifos', pipe])
    assert.ok(statSync(pipe).isFIFO())
    assert.equal(statSync(pipe).mode & 0o777, 0o666)
  })
}

test('of many calls at once, each gets its own result', async () => {
  const paths = Array.from({ length: 40 }, (_, n) =>
    join(folder, n % 3 === 0 ? `none/${String(n)}` : `many-${String(n)}`),
  )
  const ends = await Promise.allSettled(paths.map((path) => helper.commands.callSystem(['fifos', path])))
  assert.deepEqual(
    ends.map(({ status }) => status === 'fulfilled'),
    paths.map((path) => existsSync(path)),
  )
})

test('after a failed network call, the helper process is back in the machine’s network namespace', async (t) => {
  if (!isRoot) {
    t.skip('network namespaces need root')
    return
  }
  const names = ['first', 'second'].map((name) => `sy-calls-${String(process.pid)}-${name}`)
  const [first = '', second = ''] = names.map((name) => `/run/netns/${name}`)
  t.after(async () => {
    for (const name of names) await runCommand('ip', ['netns', 'delete', name], LIMIT)
  })
  const own = readlinkSync('/proc/self/ns/net')
  const cable = ['/run/netns/no-such-router', 'v1', '198.18.0.1', '198.18.0.2', '30'] as const
  await assert.rejects(helper.commands.callSystem(['network', first, ...cable]), /no-such-router: No such file/)
  // The same helper process creates the second namespace. The failed call must not have left it in the first one.
  await helper.commands.callSystem(['network', second])
  const ids = await Promise.all([first, second].map(async (path) => `net:[${String(statSync(path).ino)}]`))
  assert.equal(new Set([...ids, own]).size, 3)
  const { stdout } = await helper.commands.run('readlink', ['/proc/self/ns/net'], { ...LIMIT, netns: second })
  assert.equal(stdout.trim(), ids[1])
  const settings = await helper.commands.run('cat', ['/proc/sys/net/ipv4/ip_unprivileged_port_start'], {
    ...LIMIT,
    netns: second,
  })
  assert.equal(settings.stdout.trim(), '0')
})

test('a namespace that is made before `ip` made any can be deleted by it', async (t) => {
  if (!isRoot) {
    t.skip('network namespaces need root')
    return
  }
  // a /run of its own, as that of a machine that has just booted
  const script = `mount -t tmpfs none /run && perl "$0" network /run/netns/first && ip netns add second && ip netns delete first &&
    ip netns delete second && ls -A /run/netns`
  const { stdout } = await runCommand(
    'unshare',
    ['-m', '--propagation', 'slave', 'sh', '-c', script, SYSTEM_CALLS_SCRIPT],
    LIMIT,
  )
  assert.equal(stdout, '')
})

test('a disk that is mounted again keeps the mode that its sandbox gave its root', async (t) => {
  if (!isRoot) {
    t.skip('mounts need root')
    return
  }
  const [image, point] = [join(folder, 'disk.img'), join(folder, 'disk')]
  writeFileSync(image, '')
  truncateSync(image, 16 * 1024 * 1024)
  await runCommand('mkfs.ext4', ['-q', '-F', image], LIMIT)
  mkdirSync(point)
  const upper = join(point, 'upper')
  const modes: number[] = []
  for (const mode of [0o1777, 0o700]) {
    await helper.commands.callSystem(['disk', image, point, '100000'])
    try {
      modes.push(statSync(upper).mode & 0o7777)
      chmodSync(upper, mode)
      assert.equal(statSync(upper).uid, 100_000)
    } finally {
      await runCommand('umount', [point], LIMIT)
    }
  }
  assert.deepEqual(modes, [0o755, 0o1777])
})

test('a sandbox’s disk and root allow no device nodes, and its disk no set-user-id programs', async (t) => {
  if (!isRoot) {
    t.skip('mounts need root')
    return
  }
  const [image, base] = [join(folder, 'flags.img'), join(folder, 'base')]
  const points = [join(base, 'disk'), join(base, 'root')]
  writeFileSync(image, '')
  truncateSync(image, 16 * 1024 * 1024)
  await runCommand('mkfs.ext4', ['-q', '-F', image], LIMIT)
  for (const point of points) mkdirSync(point, { recursive: true })
  await helper.commands.callSystem(['disk', image, join(base, 'disk'), '100000'])
  t.after(() => runCommand('umount', [join(base, 'disk')], LIMIT))
  await helper.commands.callSystem(['root', base, 'index=off', ''])
  t.after(() => runCommand('umount', [join(base, 'root')], LIMIT))
  const mounts = (await readFile('/proc/self/mountinfo', 'utf8')).split('\n').map((line) => line.split(' '))
  assert.deepEqual(
    points.map((point) => mounts.find((fields) => fields[4] === point)?.[5]),
    ['rw,nosuid,nodev,noatime', 'rw,nodev,relatime'],
  )
})
