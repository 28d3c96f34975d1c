import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, afterEach, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import type { CommandResult } from '../../../../src/lib/run-command.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { makeGuest } from '../../../support/container-guest.ts'
import { makeLauncher } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { UNLIMITED_SESSIONS } from '../../../support/container.ts'
import { connectFiles, fieldOf, namesOf, type FsClient } from '../../../support/fs-client.ts'
import { bind, named, tmpfs, desiredRunWithMounts } from '../../../support/mounts.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { waitUntil } from '../../../support/wait.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'

const isGvisor = testRuntime() === 'runsc'
const ownKernel = { skip: isGvisor ? 'gVisor has a /proc and processes of its own' : false }
const NEVER = new AbortController().signal
const MIB = 1024 * 1024
const PIDS_LIMIT = 24
let fixture: OciFixture
let driver: Driver
let clients: FsClient[] = []

describe('the files of a sandbox of the oci driver', { skip: whyNoOci() ?? false, timeout: 240_000 }, () => {
  let box: DesiredRun
  before(async () => {
    fixture = await makeOciFixture()
    driver = await fixture.open({ pidsLimit: PIDS_LIMIT })
    box = await start(
      desiredRunWithMounts([tmpfs('/memory'), named('v', '/volume'), named('w', '/readonly', { readonly: true }), bind('folder', '/volume/in')]), // prettier-ignore
    )
  })
  afterEach(async () => {
    for (const client of clients) await client.agent.hangUp()
    clients = []
  })
  after(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  })

  test('files that a client creates belong to user 0 of the sandbox, and files of the sandbox are listed with its own users', async () => {
    const client = await connect(box)
    await put(client, '/tmp/by client', Buffer.from('hello'), { mode: 0o640 })
    await client.run('Mkdir', { path: '/tmp/folder/in', mode: 0o750 })
    const told = await inside(
      box,
      'stat -c "%u:%g %a" "/tmp/by client" /tmp/folder /tmp/folder/in; cat "/tmp/by client"',
    )
    assert.equal(told.stdout, '0:0 640\n0:0 755\n0:0 750\nhello')
    await inside(box, 'echo secret >/tmp/alices; chown 1000:50 /tmp/alices; chmod 600 /tmp/alices')
    const stat = fieldOf(await client.run('Stat', { path: '/tmp/alices', follow_symlink: true }), 'Stat')
    assert.deepEqual([fieldOf(stat, 'uid'), fieldOf(stat, 'gid'), fieldOf(stat, 'mode')], [1000, 50, 0o100600])
    assert.equal((await get(client, '/tmp/alices')).toString(), 'secret\n')
    await client.run('SetStat', {
      path: '/tmp/alices',
      follow_symlink: true,
      attrs: { uid: 65_535, gid: 7, mtime: 99 },
    })
    assert.equal((await inside(box, 'stat -c "%u:%g %Y" /tmp/alices')).stdout, '65535:7 99\n')
    const stranger = { path: '/tmp/alices', follow_symlink: true, attrs: { uid: 70_000 } }
    assert.match(await client.refusal('SetStat', stranger), /Invalid argument \(os error 22\)/)
  })

  test('files that a client creates as a user belong to that user, and the next operation is user 0’s again', async () => {
    const client = await connect(box)
    await inside(box, 'mkdir -m 777 /tmp/shared; echo "ada:x:1234:50::/:/bin/sh" >> /etc/passwd')
    await client.run('Mkdir', { path: '/tmp/shared/folder', mode: 0o750, user: 'ada' })
    await client.run('Symlink', { target: 'x', link_path: '/tmp/shared/link', user: 'ada:7' })
    const denied = await client.refusal('OpenFile', {
      path: '/etc/new',
      options: { write: true, create: true, user: 'ada' },
    })
    assert.match(denied, /Permission denied/)
    assert.deepEqual(await client.run('RealPath', { path: '/tmp/shared/folder' }), { Path: '/tmp/shared/folder' })
    await put(client, '/etc/new', Buffer.from('root'), { mode: 0o600 })
    const { stdout } = await inside(box, 'stat -c "%u:%g" /tmp/shared/folder /tmp/shared/link /etc/new')
    assert.equal(stdout, '1234:50\n1234:7\n0:0\n')
  })

  test('all mounts are visible and obeyed: tmpfs, volumes, nested ones, readonly ones', async () => {
    const client = await connect(box)
    await put(client, '/volume/in/file', Buffer.from('deep'))
    assert.equal(readFileSync(join(fixture.volume, 'folder/file'), 'utf8'), 'deep')
    assert.equal(statSync(join(fixture.volume, 'folder/file')).uid, fixture.settings.uidShift)
    writeFileSync(join(fixture.volumeFolder('v'), 'outside'), 'of volume')
    assert.equal((await get(client, '/volume/outside')).toString(), 'of volume')
    const write = { write: true, create: true }
    assert.match(await client.refusal('OpenFile', { path: '/readonly/x', options: write }), /Read-only file system/)
    const handle = await client.open('/memory/x', write)
    assert.match(String((await client.write(handle, Buffer.alloc(2 * MIB))).error), /No space left on device/)
    assert.equal((await inside(box, 'stat -c %s /memory/x')).stdout, `${String(MIB)}\n`)
  })

  test('file operations work in a sandbox whose image has no files', async () => {
    const empty = await start(makeDesiredRun({ image: 'local/empty' }))
    const client = await connect(empty)
    const content = randomBytes(5 * MIB)
    await put(client, '/data/x', content, {}, '/data')
    assert.ok((await get(client, '/data/x')).equals(content))
    assert.ok(namesOf(await client.run('List', { path: '/' })).includes('/data dir'))
  })

  test('no path and no symlink leads to a file of the machine', async () => {
    const client = await connect(box)
    const secret = join(fixture.dir, 'secret')
    writeFileSync(secret, 'of the machine')
    const ups = '../'.repeat(20)
    for (const [n, path] of [
      secret,
      `/proc/1/root${secret}`,
      `/proc/self/root/${ups}${secret}`,
      `${ups}${secret}`,
      `/proc/1/cwd${secret}`,
      `/dev/../${secret}`,
    ].entries()) {
      assert.match(await client.refusal('Stat', { path, follow_symlink: true }), /os error (2|13)\)/, path)
      const link = `/tmp/out ${String(n)}`
      await client.run('Symlink', { target: path, link_path: link })
      assert.match(await client.refusal('OpenFile', { path: link, options: { read: true } }), /os error (2|13)\)/, path)
      await client.refusal('Copy', { src: link, dst: '/tmp/copied' })
      await client.refusal('OpenFile', { path: `${link}/../made`, options: { write: true, create: true } })
    }
    await client.run('Symlink', { target: '/etc/passwd', link_path: '/tmp/passwd' })
    assert.match((await get(client, '/tmp/passwd')).toString(), /^root:x:0:0:root:\/root:\/bin\/sh\nalice:/)
    assert.equal(existsSync(join(fixture.dir, 'made')), false)
  })

  test(
    'nothing of the machine can be read or changed through /proc and /dev, and the mounted programs are readonly',
    ownKernel,
    async () => {
      const client = await connect(box)
      for (const path of [
        '/proc/kmsg',
        '/proc/kcore',
        '/proc/kallsyms',
        '/dev/vda',
        '/dev/sda',
        '/dev/mem',
        '/proc/keys',
      ]) {
        let data: Buffer = Buffer.alloc(0)
        try {
          data = await get(client, path, 16)
        } catch {
          continue // refused
        }
        assert.equal(data.length, 0, path)
      }
      for (const path of [
        '/proc/sysrq-trigger',
        '/proc/sys/kernel/panic',
        '/.msb/tools/files.pl',
        '/.msb/init',
        '/proc/self/exe',
        '/sys/x',
      ]) {
        const options = { write: true, create: true }
        assert.match(await client.refusal('OpenFile', { path, options }), /os error (1|2|13|26|30)\)/, path)
      }
      assert.match(await client.refusal('RemoveDir', { path: '/.msb/tools', recursive: true }), /os error 30\)/)
      assert.match(await client.refusal('Rename', { src: '/.msb/tools', dst: '/tmp/tools' }), /os error 16\)/)
    },
  )

  test('the process has exactly the privileges of the sandbox’s own processes', ownKernel, async () => {
    const restricted = await start(makeDesiredRun({ security_profile: 'restricted' }))
    for (const [desired, noNewPrivs] of [
      [box, '0'],
      [restricted, '1'],
    ] as const) {
      const status = (await get(await connect(desired), '/proc/self/status')).toString()
      const other = (await inside(desired, 'cat /proc/self/status')).stdout
      const fieldIn = (text: string, name: string): string =>
        new RegExp(`^${name}:[ \\t]*(.*)$`, 'm').exec(text)?.[1] ?? ''
      for (const name of ['CapEff', 'CapPrm', 'CapBnd', 'CapInh', 'CapAmb', 'Uid', 'Gid', 'Groups'])
        assert.equal(fieldIn(status, name), fieldIn(other, name), name)
      assert.equal(fieldIn(status, 'NoNewPrivs'), noNewPrivs)
      assert.equal(fieldIn(status, 'Seccomp'), '2')
      const cgroups = (await get(await connect(desired), '/proc/self/cgroup')).toString()
      assert.equal(cgroups, (await get(await connect(desired), '/proc/1/cgroup')).toString())
    }
  })

  test(
    'a process that the sandbox kills is replaced, and one that it suspends ends with its client',
    ownKernel,
    async () => {
      const client = await connect(box)
      await client.run('Stat', ROOT)
      await inside(box, `kill -9 $(${FIND})`)
      await waitUntil(async () => (await inside(box, FIND)).stdout === '')
      const answer = await client.answer(client.ask('Stat', ROOT))
      if (answer.ok !== true) await client.run('Stat', ROOT)
      await inside(box, `kill -STOP $(${FIND})`)
      client.ask('Stat', ROOT)
      await client.agent.hangUp()
      assert.equal((await inside(box, FIND)).stdout, '')
    },
  )

  test('file operations still work in a sandbox that has used up its process limit', ownKernel, async () => {
    const full = await start(makeDesiredRun())
    const { agent } = await connect(full)
    const forks = `for n in $(seq ${String(PIDS_LIMIT)}); do sleep 1000 & done; wait`
    const id = agent.exec({ cmd: 'sh', args: ['-c', forks] })
    await waitUntil(() => /fork/.test(agent.text(id, 'stderr')))
    const client = await connect(full)
    await put(client, '/tmp/x', Buffer.from('x'))
    assert.equal((await get(client, '/tmp/x')).toString(), 'x')
  })

  test('a stop does not wait for processes that serve files, and their clients get an error', async () => {
    const stopped = await start(makeDesiredRun())
    const client = await connect(stopped)
    const id = client.ask('Read', { handle: await client.open('/dev/zero'), offset: 0, len: null })
    await waitUntil(() => client.received(id).length > 0)
    const startMs = performance.now()
    await driver.stop(stopped.run_id, 100_000)
    assert.ok(performance.now() - startMs < 50_000)
    assert.match(String((await client.answer(id)).error), /has ended/)
    assert.match(await client.refusal('Stat', ROOT), /^files: /)
  })
})

const ROOT = { path: '/', follow_symlink: true }

/** The processes of the sandbox that serve files. */
const FIND = 'for p in /proc/[0-9]*; do grep -qs files[.]pl $p/cmdline && echo ${p#/proc/}; done; true'

async function start(desired: DesiredRun): Promise<DesiredRun> {
  await driver.start(desired, NEVER)
  return desired
}

async function inside(desired: DesiredRun, script: string): Promise<CommandResult> {
  return await fixture.exec(desired.run_id, ['sh', '-c', script])
}

async function connect(desired: DesiredRun): Promise<FsClient> {
  await driver.openChannel(desired.run_id)
  const client = connectFiles(
    makeGuest(fixture.container(desired.run_id), {
      log: makeLog('silent'),
      sessions: UNLIMITED_SESSIONS,
      launcher: makeLauncher(makeLog('silent')),
      pty: null,
    }),
  )
  clients.push(client)
  return client
}

async function put(client: FsClient, path: string, content: Buffer, more: object = {}, folder?: string): Promise<void> {
  if (folder !== undefined) await client.run('Mkdir', { path: folder, mode: null })
  const handle = await client.open(path, { write: true, create: true, truncate: true, ...more })
  assert.equal((await client.write(handle, content, { len: content.length })).ok, true)
  await client.run('CloseHandle', { handle })
}

async function get(client: FsClient, path: string, len: number | null = null): Promise<Buffer> {
  const handle = await client.open(path)
  const content = await client.read(handle, { len })
  await client.run('CloseHandle', { handle })
  return content
}
