import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, chownSync, existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { findLeftovers } from '../support/leftovers.ts'
import { named } from '../support/mounts.ts'
import { runMsb } from '../support/msb.ts'
import { makeProgram, runProgram, type ProgramProcess } from '../support/program.ts'
import { noteFault } from '../support/reliability.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'
import { TEST_REGISTRIES } from '../support/outbound-http.ts'
import { waitUntil } from '../support/wait.ts'
import { PROGRAM } from '../support/program-file.ts'

// A data folder at a difficult path, which moves: while nothing runs, while sandboxes run, and as a copy beside the original.
// The tests build on each other.

const KEY = 'test-key-of-the-first-organization'
/** PostgreSQL, overlayfs, sockets and shells each give a meaning to some of these characters, or limit the length. */
const ODD_NAME = `it's "a", data: folder\\ with ünïcode=${'x'.repeat(120)}`
/** A user of the host who is not the one that runs PostgreSQL. */
const OTHER_USER = 54_321
/** A container has mounts of its own, and may share the cgroups. */
const IN_CONTAINER = 'umount -l "$POINT" && exec "$0" "$1" up'

describe('a data folder that moves', { skip: whyNoServer() }, () => {
  let root: string
  let closed: string
  let dataDir: string
  let program: ProgramProcess
  let client: { readonly url: string; readonly key: string; readonly clientEnv: Readonly<Record<string, string>> }

  const start = async (): Promise<void> => {
    const settings = {
      SANDYARD_DATA_DIR: dataDir,
      SANDYARD_API_KEY: KEY,
      SANDYARD_PORT: '0',
      SANDYARD_READY_AHEAD: '1',
      SANDYARD_REGISTRIES_ALLOWED: TEST_REGISTRIES,
      SANDYARD_SHUTDOWN: 'keep',
      SANDYARD_VOLUME_POOL_GIB: '1',
    }
    program = makeProgram(['up'], settings, /ready on (\S+)/)
    const [, url = ''] = await program.start()
    const clientEnv = { MSB_BACKEND: 'cloud', MSB_API_URL: url, MSB_API_KEY: KEY, HOME: join(root, 'home') }
    client = { url, key: KEY, clientEnv }
  }
  const operate = (...args: readonly string[]) => runProgram(args, { SANDYARD_DATA_DIR: dataDir })
  const inside = async (command: string): Promise<string> => {
    const { code, stdout, stderr } = await runMsb(client, ['exec', 'box', '--', 'sh', '-c', command])
    assert.equal(code, 0, stderr)
    return stdout.trim()
  }
  const status = async (): Promise<string> =>
    (await mustCall(client, 'get_sandbox_by_name', { params: { name: 'box' } })).status

  before(() => {
    root = mkdtempSync(join(tmpdir(), 'sandyard-moved-'))
    closed = join(root, 'closed to others')
    mkdirSync(join(root, 'home'))
    mkdirSync(closed)
    chownSync(closed, OTHER_USER, OTHER_USER)
    chmodSync(closed, 0o700)
    dataDir = join(closed, ODD_NAME)
  })
  after(async () => {
    await program.stop()
    if (existsSync(join(dataDir, 'name-prefix'))) await operate('down')
    const left = existsSync(join(dataDir, 'name-prefix')) ? await findLeftovers(dataDir) : []
    rmSync(root, { recursive: true, force: true })
    assert.deepEqual(left, [])
  })

  test('works at any path, also under a folder that is closed to others', async () => {
    await start()
    assert.equal((await runMsb(client, ['volume', 'create', 'kept'])).code, 0)
    await mustCall(client, 'create_sandbox', {
      query: { start: 'true', wait_for: 'running' },
      body: { name: 'box', image: DEMO_IMAGE, mounts: [named('kept', '/kept')] },
    })
    await inside('echo disk >/mark; echo volume >/kept/mark; sync')
    const listed = await operate('key', 'list')
    assert.equal(listed.code, 0, listed.output)
  })

  test('moves while its sandboxes run: the next server adopts them, and stop ends them', async () => {
    await program.stop()
    const moved = join(closed, 'moved, while: running')
    renameSync(dataDir, moved)
    dataDir = moved
    await start()
    assert.equal(await status(), 'running')
    assert.equal(await inside('cat /mark /kept/mark; echo still >>/mark'), 'disk\nvolume')
    const stopped = await runMsb(client, ['stop', 'box'])
    assert.equal(stopped.code, 0, stopped.stderr)
    await waitUntil(async () => (await status()) === 'stopped')
  })

  test('starts its sandboxes with their disks and volumes at its new place, as does a copy of it', async () => {
    await program.stop()
    const copy = join(root, 'copy of it')
    copyFolder(dataDir, copy)
    rmSync(dataDir, { recursive: true })
    dataDir = copy
    await start()
    const started = await runMsb(client, ['start', 'box'])
    assert.equal(started.code, 0, started.stderr)
    assert.equal(await inside('cat /mark /kept/mark'), 'disk\nstill\nvolume')
  })

  test('is refused beside the folder of which it is a copy, until it has an id of its own', async () => {
    const copy = join(root, 'second copy')
    copyFolder(dataDir, copy)
    const settings = { SANDYARD_DATA_DIR: copy, SANDYARD_PORT: '0' }
    const refused = await runProgram(['up'], settings)
    assert.equal(refused.code, 1, refused.output)
    assert.ok(refused.output.includes(copy) && refused.output.includes(dataDir), refused.output)
    assert.match(refused.output, /name-prefix/)
    const inContainer = spawnSync(
      'unshare',
      ['--mount', '--propagation', 'slave', 'sh', '-c', IN_CONTAINER, process.execPath, PROGRAM],
      {
        env: { ...process.env, ...settings, POINT: `/run/sandyard/${readFileSync(join(copy, 'name-prefix'), 'utf8')}` },
        encoding: 'utf8',
      },
    )
    assert.match(inContainer.stderr, /another container/, 'cgroups show that the original runs, also without its mount')
    assert.equal(await inside('cat /mark'), 'disk\nstill', 'the original runs on')
    rmSync(join(copy, 'name-prefix'))
    const second = makeProgram(['up'], settings, /ready on (\S+)/)
    await second.start()
    await second.stop()
    const down = await runProgram(['down'], { SANDYARD_DATA_DIR: copy })
    assert.equal(down.code, 0, down.output)
    assert.equal(await inside('cat /mark'), 'disk\nstill', 'the copy took nothing from the original')
    assert.deepEqual(await findLeftovers(copy), [])
    noteFault({
      area: 'data',
      fault: 'the data folder moves: to an odd path under a closed folder, while its sandbox runs, and as a copy',
      injected: 3,
      checked:
        'the sandbox runs on or starts with its disk and volume, `stop` ends it, and a copy beside the running original is refused',
      found: 'nothing lost, nothing left behind; a copy with an id of its own ran beside the original',
    })
  })
})

function copyFolder(from: string, to: string): void {
  execFileSync('cp', ['-a', from, to])
}
