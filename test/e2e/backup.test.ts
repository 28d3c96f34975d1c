import assert from 'node:assert/strict'
import { chmodSync, cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { runMsb } from '../support/msb.ts'
import { runProgram } from '../support/program.ts'
import { mountSmallDisk, whyNoSmallDisk } from '../support/small-disk.ts'
import { noteFault } from '../support/reliability.ts'
import { DEMO_IMAGE, loadSdk } from '../support/sdk.ts'
import { spawnProgram, startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// Backups of a server that runs, with real sandboxes that write; then everything is deleted and restored elsewhere. The tests
// are in order.

/** Writes numbered lines to a volume and to the disk, for as long as the sandbox runs. */
const WRITER = 'i=0; while true; do i=$((i+1)); echo $i >> /data/lines; echo $i >> /root/lines; sync /root/lines; done'

describe('backup and restore', { skip: whyNoServer() }, () => {
  let server: RealServer
  let root: string
  let target: string

  before(async () => {
    root = mkdtempSync(join(tmpdir(), 'sandyard-backup-'))
    chmodSync(root, 0o711)
    target = join(root, 'backups')
    server = await startServer({ SANDYARD_STOP_GRACE_MS: '500' })
  })
  after(async () => {
    await server.close()
    rmSync(root, { recursive: true, force: true })
  })

  const sandyard = (...args: readonly string[]) => runProgram(args, { SANDYARD_DATA_DIR: server.dataDir })
  const msb = async (...args: readonly string[]): Promise<string> => {
    const { code, stdout, stderr } = await runMsb(server, args)
    assert.equal(code, 0, stderr)
    return stdout
  }
  const chunksIn = (dir: string): readonly string[] =>
    readdirSync(join(dir, 'chunks'), { recursive: true, encoding: 'utf8' }).filter((name) => name.length > 60)
  /** The usage of the sandbox `stopped`, by day: a line of CSV for each. It ran only before the backups. */
  const usageOfStopped = async (): Promise<readonly string[]> => {
    const lines = (await sandyard('usage', 'export')).output.split('\n').filter((line) => line.includes(',stopped,'))
    assert.ok(lines.length > 0)
    return lines
  }
  /** What a client of the first organization reads, except what goes on by itself. */
  const readAll = async () => ({
    org: await mustCall(server, 'get_org'),
    volumes: (await mustCall(server, 'list_volumes')).map(({ id, name, labels }) => ({ id, name, labels })),
    events: (await mustCall(server, 'list_events', { query: { limit: '100' } })).data.map(({ id }) => id),
  })

  test('a backup while sandboxes write has a consistent disk and volume, and a second one stores only what changed', async () => {
    await msb('volume', 'create', 'data')
    await msb('create', DEMO_IMAGE, '--name', 'stopped', '--label', 'kept=yes')
    await msb(
      'exec',
      'stopped',
      '--',
      'sh',
      '-c',
      'echo note > /root/note; ln /root/note /root/hard; ln -s note /root/soft; chmod 4711 /root/note',
    )
    await msb('stop', 'stopped')
    const sdk = await loadSdk(server)
    await sdk.Sandbox.builder('writer')
      .image(DEMO_IMAGE)
      .volume('/data', (mount) => mount.named('data'))
      .create()
    await msb('exec', 'writer', '--', 'sh', '-c', `(${WRITER}) >/dev/null 2>&1 & echo started`)
    const { code, output } = await sandyard('backup', target)
    assert.equal(code, 0, output)
    assert.match(output, /1 volumes and 2 disks/)
    assert.match(await msb('exec', 'writer', '--', 'sh', '-c', 'tail -n 1 /root/lines'), /^\d+\n$/) // nothing stays frozen
    const first = chunksIn(target).length
    const again = await sandyard('backup', target, '--json')
    assert.equal(again.code, 0, again.output)
    const made = JSON.parse(again.output.slice(again.output.indexOf('{')))
    assert.ok(made.written_bytes < made.read_bytes / 2, again.output)
    assert.ok(chunksIn(target).length < first * 2)
    assert.equal(readdirSync(join(target, 'backups')).length, 2)
    assert.deepEqual(
      [existsSync(join(server.dataDir, 'backup-links')), existsSync(join(target, 'incoming'))],
      [false, false],
    )
  })

  test('list and verify name the backups; verify finds a flipped byte and a missing chunk', async () => {
    assert.equal((await sandyard('backup', 'list', target)).output.trim().split('\n').length, 3)
    const sound = await sandyard('backup', 'verify', target)
    assert.equal(sound.code, 0, sound.output)
    const copy = join(root, 'damaged')
    cpSync(target, copy, { recursive: true })
    const [flipped = '', missing = ''] = chunksIn(copy)
    const bytes = readFileSync(join(copy, 'chunks', flipped))
    bytes.writeUInt8((bytes.at(-1) ?? 0) ^ 1, bytes.length - 1)
    writeFileSync(join(copy, 'chunks', flipped), bytes)
    rmSync(join(copy, 'chunks', missing))
    const { code, output } = await sandyard('backup', 'verify', copy)
    assert.equal(code, 1, output)
    assert.match(output, new RegExp(`${flipped} is damaged`))
    assert.match(output, new RegExp(`${missing} is missing`))
  })

  test('kill -9 of a backup leaves the backups before it complete, nothing frozen, and nothing behind after the next', async () => {
    const count = readdirSync(join(target, 'backups')).length
    const killed = spawnProgram(['backup', target], { SANDYARD_DATA_DIR: server.dataDir })
    let said = ''
    killed.stderr?.setEncoding('utf8').on('data', (text: string) => (said += text))
    await waitUntil(() => said.includes('\ndisk '))
    killed.kill('SIGKILL')
    await waitUntil(() => killed.signalCode !== null)
    const wrote = await msb(
      'exec',
      'writer',
      '--',
      'sh',
      '-c',
      'echo after > /root/after && sync /root/after && echo ok',
    )
    assert.equal(wrote, 'ok\n')
    assert.equal(readdirSync(join(target, 'backups')).length, count)
    assert.equal((await sandyard('backup', 'verify', target)).code, 0)
    assert.equal((await sandyard('backup', target)).code, 0)
    const left = [join(server.dataDir, 'backup-links'), join(target, 'incoming')].filter((path) => existsSync(path))
    assert.deepEqual(left, [])
    noteFault({
      area: 'data',
      fault: 'kill -9 of a backup while it reads the disk of a sandbox that writes',
      injected: 1,
      checked: 'the disk is writable at once; the backups before are complete; the next backup succeeds',
      found: 'every check held, and nothing was left behind',
    })
  })

  test('a deleted installation is restored elsewhere: data, keys, usage and events are the same, and what ran is failed', async () => {
    const before = await readAll()
    const usage = await usageOfStopped()
    const made = await sandyard('backup', join(root, 'one.tar'))
    assert.equal(made.code, 0, made.output)
    await server.close() // deletes the data folder
    const moved = join(root, 'moved', 'data')
    const { code, output } = await runProgram(['restore', join(root, 'one.tar'), '--data-dir', moved], {})
    assert.equal(code, 0, output)
    assert.match(output, /1 sandboxes ran then/)
    server = await startServer({ SANDYARD_DATA_DIR: moved, SANDYARD_STOP_GRACE_MS: '500' })
    const after = await readAll()
    assert.deepEqual({ ...after, events: [] }, { ...before, events: [] })
    assert.deepEqual(
      before.events.filter((id) => !after.events.includes(id)),
      [],
    )
    const writer = await mustCall(server, 'get_sandbox_by_name', { params: { name: 'writer' } })
    assert.equal(writer.status, 'failed')
    assert.match(writer.last_failure_message ?? '', /^it ran when the backup of /)
    assert.deepEqual(await usageOfStopped(), usage)
    await msb('start', 'stopped')
    assert.equal(
      await msb(
        'exec',
        'stopped',
        '--',
        'sh',
        '-c',
        'cat /root/hard; readlink /root/soft; stat -c "%a %h %u" /root/note',
      ),
      'note\nnote\n4711 2 0\n',
    )
    await msb('start', 'writer')
    const check = 'for f in /data/lines /root/lines; do awk "\\$1 != NR { exit 1 }" $f && wc -l < $f; done'
    const lines = await msb('exec', 'writer', '--', 'sh', '-c', check)
    assert.match(lines, /^\d+\n\d+\n$/)
    noteFault({
      area: 'data',
      fault: 'the data folder is deleted, and restored at another path from a backup that was made under load',
      injected: 1,
      checked: 'sandboxes, disks, volumes, keys, usage and events are the same; what ran is failed with the reason',
      found: `no line of the writer missing (volume and disk: ${lines.trim().replace('\n', ' and ')} lines)`,
    })
  })

  test(
    'a backup onto a full disk fails with what to do, and the next one succeeds there',
    { skip: whyNoSmallDisk() },
    async () => {
      const disk = mountSmallDisk(64)
      try {
        for (const full of [join(disk.folder, 'backups'), join(disk.folder, 'backup.tar')]) {
          disk.fill()
          const refused = await sandyard('backup', full, '--without-images')
          assert.equal(refused.code, 1)
          assert.match(refused.output, /the file system with .* is full: enlarge it, .* or name another target/)
          disk.free()
          const made = await sandyard('backup', full, '--without-images')
          assert.equal(made.code, 0, made.output)
        }
      } finally {
        disk.remove()
      }
    },
  )

  test('restore refuses a folder that is not empty, and backup refuses one with other files', async () => {
    const used = await runProgram(['restore', target, '--data-dir', server.dataDir], {})
    assert.deepEqual([used.code, /is not empty/.test(used.output)], [1, true], used.output)
    const other = await sandyard('backup', root)
    assert.deepEqual([other.code, /has other files/.test(other.output)], [1, true], other.output)
  })
})
