import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { findMissingForVmDisks, findMissingForVmHostStat } from '../../src/worker/drivers/microsandbox/disk-images.ts'
import { findMissingMicroVmRequirements } from '../../src/worker/drivers/microsandbox/installation.ts'
import { mustCall, type SandboxBody } from '../support/api.ts'
import { runMsb } from '../support/msb.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// What programs without rights show to microVMs: disk images, whose own kernel mounts them, and folders with their metadata.

const lacks = [...(await findMissingMicroVmRequirements()), ...findMissingForVmDisks(), ...findMissingForVmHostStat()]
const LIMIT = { timeoutMs: 60_000 }

describe('disk images and served folders of microVMs', { skip: lacks.length === 0 ? false : lacks.join('; ') }, () => {
  let server: RealServer
  let folder: string

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'sandyard-vm-disks-'))
    mkdirSync(join(folder, 'content'))
    writeFileSync(join(folder, 'content/greeting'), 'hello\n')
    const [raw, other] = [join(folder, 'd.img'), join(folder, 'd.qcow2')]
    await runCommand('mkfs.ext4', ['-q', '-d', join(folder, 'content'), raw, '16M'], LIMIT)
    await runCommand('qemu-img', ['convert', '-O', 'qcow2', raw, other], LIMIT)
    server = await startServer({ SANDYARD_DRIVER: 'microsandbox' })
    await Promise.all([raw, other].map((path) => upload(path.slice(folder.length), readFileSync(path))))
  })
  after(async () => {
    await server.close()
    rmSync(folder, { recursive: true })
  })

  test('a microVM reads and writes a raw image alone, and its files are there at its next start', async () => {
    const id = await create('raw', { host: '/d.img', format: 'raw' })
    assert.equal(await inside('raw', 'cat /disk/greeting; echo mine >/disk/kept; sync'), 'hello\n')
    const { last_failure_message } = await started('second', { host: '/d.img', format: 'raw' })
    assert.match(last_failure_message ?? '', /the disk image '\/d\.img': it is mounted elsewhere/)
    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: id } })
    await waitUntil(async () => (await read(id)).status === 'stopped', LIMIT.timeoutMs)
    await mustCall(server, 'start_sandbox', { params: { sandbox_id: id } })
    await waitUntil(async () => (await read(id)).status === 'running', LIMIT.timeoutMs)
    assert.equal(await inside('raw', 'cat /disk/kept'), 'mine\n')
    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: id } })
  })

  test('a microVM reads an image in another format, which it may not write', async () => {
    await create('qcow2', { host: '/d.qcow2', format: 'qcow2', options: { readonly: true } })
    assert.equal(
      await inside('qcow2', 'cat /disk/greeting; echo no >/disk/x 2>/dev/null || echo refused'),
      'hello\nrefused\n',
    )
  })

  test('a microVM sees the owners that files have, and can change modes but no owner', async () => {
    await create('stat', { type: 'bind', host: '/work', guest: '/work', stat_virtualization: 'off' })
    const made = 'cd /work; echo x >file; chmod 640 file; stat -c "%u %a" file'
    assert.equal(await inside('stat', made), '0 640\n')
    for (const command of ['chown 1000 file', 'mkfifo pipe', 'mknod null c 1 3'])
      assert.equal(await inside('stat', `cd /work; ${command} 2>/dev/null || echo refused`), 'refused\n', command)
    await create('plain', { type: 'bind', host: '/work', guest: '/work' })
    assert.equal(await inside('plain', 'cat /work/file; ls /work'), 'x\nfile\n')
  })

  /** Creates a sandbox with a mount. Resolves with the sandbox once it runs or failed to. */
  async function started(name: string, mount: object): Promise<SandboxBody> {
    const body = { name, image: DEMO_IMAGE, mounts: [{ type: 'disk_image', guest: '/disk', ...mount }] }
    const { id } = await mustCall(server, 'create_sandbox', { query: { start: 'true' }, body })
    return await waitUntil(async () => {
      const sandbox = await read(id)
      return sandbox.status !== 'starting' && sandbox
    }, LIMIT.timeoutMs)
  }

  async function create(name: string, mount: object): Promise<string> {
    const { id, status, last_failure_message } = await started(name, mount)
    assert.equal(status, 'running', last_failure_message ?? '')
    return id
  }

  const read = (id: string): Promise<SandboxBody> => mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })

  async function inside(name: string, script: string): Promise<string> {
    return (await runMsb(server, ['exec', name, '--', 'sh', '-c', script])).stdout
  }

  async function upload(path: string, content: Buffer): Promise<void> {
    const headers = {
      authorization: `Bearer ${server.key}`,
      'x-msb-file-path': Buffer.from(path).toString('base64url'),
    }
    const url = `${server.url}/v1/volumes/default/files/content`
    const { status } = await fetch(url, { method: 'PUT', headers, body: content })
    assert.ok(status < 300, String(status))
  }
})
