import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { release } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { findMissingMicroVmRequirements } from '../../src/worker/drivers/microsandbox/installation.ts'
import { mountFolderOf } from '../../src/worker/mounts.ts'
import { runMsb } from '../support/msb.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// Basic operations of the unmodified public SDK and `msb` on a server whose sandboxes are microVMs.

const lacks = await findMissingMicroVmRequirements()

describe('sandboxes that are virtual machines', { skip: lacks.length === 0 ? false : lacks.join('; ') }, () => {
  let server: RealServer
  let sdk: Sdk

  before(async () => {
    // `keep` lets sandboxes run on while the server restarts. The last test starts it without `keep`, so that they stop
    // at the end.
    server = await startServer({ SANDYARD_DRIVER: 'microsandbox', SANDYARD_SHUTDOWN: 'keep' })
    sdk = await loadSdk(server)
  })
  after(() => server.close())

  const small = (name: string) => sdk.Sandbox.builder(name).image(DEMO_IMAGE).cpus(1).memory(256)

  /** Runs `msb`, asserts that it succeeds, and returns its output. */
  async function printed(...args: readonly string[]): Promise<string> {
    const { code, stdout, stderr } = await runMsb(server, args)
    assert.equal(code, 0, `msb ${args.join(' ')}: ${stderr}`)
    return stdout
  }

  test('the SDK creates a microVM with its own kernel, runs commands, stops and removes it, and no VM process is left', async () => {
    const box = await small('by-sdk').create()
    assert.equal(machinesOf(server.dataDir).length, 1)
    const output = await box.exec('sh', ['-c', 'uname -r; echo err >&2; exit 3'])
    assert.deepEqual([output.stderr(), output.code], ['err\n', 3])
    assert.notEqual(output.stdout().trim(), release())
    const echoed = await box.execWith('cat', (options) => options.stdinBytes(Buffer.from('given')))
    assert.equal(echoed.stdout(), 'given')
    await box.shell('echo kept >/root/file')
    await box.stop()
    assert.equal((await sdk.Sandbox.get('by-sdk')).status, 'stopped')
    await waitUntil(() => machinesOf(server.dataDir).length === 0)
    const again = await sdk.Sandbox.start('by-sdk')
    assert.equal((await again.exec('cat', ['/root/file'])).stdout(), 'kept\n')
    await again.stop()
    await sdk.Sandbox.remove('by-sdk')
    await assert.rejects(sdk.Sandbox.get('by-sdk'), sdk.SandboxNotFoundError)
    await waitUntil(() => machinesOf(server.dataDir).length === 0)
  })

  test('msb creates a microVM, runs a command in it, stops and removes it', async () => {
    await printed('create', '--name', 'by-msb', '--cpus', '1', '--memory', '256M', DEMO_IMAGE)
    assert.match(await printed('ls'), /^by-msb\s.*running/m)
    const result = await runMsb(server, ['exec', 'by-msb', '--', 'sh', '-c', 'echo out; echo err >&2; exit 41'])
    assert.deepEqual([result.code, result.stdout, result.stderr], [41, 'out\n', 'err\n'])
    await printed('stop', 'by-msb')
    assert.match(await printed('ls'), /^by-msb\s.*stopped/m)
    await printed('rm', 'by-msb')
    assert.doesNotMatch(await printed('ls'), /by-msb/)
  })

  test('commands see the files that the SDK writes', async () => {
    const box = await small('files').create()
    await box.fs().write('/root/from-outside', Buffer.from('written'))
    assert.equal((await box.exec('cat', ['/root/from-outside'])).stdout(), 'written')
    await box.shell('echo inside >/root/from-inside')
    assert.equal(Buffer.from(await box.fs().read('/root/from-inside')).toString(), 'inside\n')
    await box.stop()
    await sdk.Sandbox.remove('files')
  })

  test('a microVM keeps running while the server restarts, and answers the new server', async () => {
    const box = await small('adopted').create()
    await box.shell('echo before >/dev/shm/file')
    await server.stop()
    assert.equal(machinesOf(server.dataDir).length, 1)
    await server.start({ SANDYARD_SHUTDOWN: 'stop' })
    const same = await (await sdk.Sandbox.get('adopted')).connect()
    assert.equal((await same.exec('cat', ['/dev/shm/file'])).stdout(), 'before\n')
    await same.stop()
    await sdk.Sandbox.remove('adopted')
  })
})

/** The process ids of the virtual machines of an installation, whose state is in the mount of its data folder. */
function machinesOf(dataDir: string): readonly string[] {
  const mount = mountFolderOf(readFileSync(join(dataDir, 'name-prefix'), 'utf8').trim())
  return readdirSync('/proc').filter((name) => {
    const folder = join('/proc', name)
    if (!/^\d+$/.test(name) || !existsSync(join(folder, 'exe'))) return false
    const [command, environment] = ['cmdline', 'environ'].map((file) => textOf(join(folder, file)))
    return /msb\0sandbox\0/.test(command ?? '') && (environment ?? '').includes(mount)
  })
}

function textOf(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return '' // the process has ended since the folder was read
  }
}
