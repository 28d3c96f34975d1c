import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'

// A client that openapi-typescript generates from openapi.json, used as its user would: type-checked, then run.

const ROOT = join(import.meta.dirname, '../..')
const TOOLS = process.env['SANDYARD_TEST_DOCUMENT_TOOLS']
const TIMEOUT_MS = 120_000 * TIMEOUT_FACTOR

/** The program of the user. It prints what the list says of the mounts of its sandbox. */
const PROGRAM = `
import createClient from 'openapi-fetch'
import type { paths } from './generated.ts'

const [baseUrl = '', key = ''] = process.argv.slice(2)
const client = createClient<paths>({ baseUrl, headers: { Authorization: 'Bearer ' + key } })

function ok<T>({ data, error }: { data?: T; error?: unknown }): T {
  if (data === undefined) throw new Error(JSON.stringify(error))
  return data
}

const volume = ok(await client.POST('/v1/volumes', { body: { name: 'datasets' } }))
const created = ok(
  await client.POST('/v1/sandboxes', {
    body: {
      name: 'generated',
      image: { type: 'oci', reference: 'demo' },
      resources: { vcpus: 1, memory_mib: 128 },
      mounts: [
        { type: 'bind', host: 'inputs', guest: '/inputs' },
        { type: 'named', name: 'datasets', guest: '/datasets', options: { readonly: true } },
        { type: 'tmpfs', guest: '/scratch', size_mib: 16 },
        { type: 'disk_image', host: 'tools.img', guest: '/tools', format: 'raw' },
      ],
    },
  }),
)
const page = ok(await client.GET('/v1/sandboxes', { params: { query: { limit: 10 } } }))
for (const { id, spec } of page.data) {
  if (id !== created.id) throw new Error('another sandbox: ' + id)
  for (const mount of spec?.mounts ?? []) {
    // Each tag narrows the union to its variant.
    const detail =
      mount.type === 'Bind' || mount.type === 'Named' ? mount.stat_virtualization
      : mount.type === 'Tmpfs' ? mount.size_mib
      : mount.format
    console.log(mount.type, mount.guest, mount.options.readonly, detail)
  }
}
ok(await client.DELETE('/v1/sandboxes/{sandbox_id}', { params: { path: { sandbox_id: created.id } } }))
ok(await client.DELETE('/v1/volumes/{id}', { params: { path: { id: volume.id } } }))
const missing = await client.GET('/v1/sandboxes/{sandbox_id}', { params: { path: { sandbox_id: created.id } } })
console.log(missing.response.status, missing.error?.error.code)
`

describe('a client that openapi-typescript generates', { skip: TOOLS === undefined && 'npm test fetches it' }, () => {
  let server: RealServer
  let folder: string
  before(async () => {
    server = await startServer({ SANDYARD_DRIVER: 'simulated' })
    folder = mkdtempSync(join(tmpdir(), 'sandyard-generated-'))
  })
  after(async () => {
    rmSync(folder, { recursive: true })
    await server.close()
  })

  test('creates, lists and deletes a sandbox with a mount of each kind, in types and in fact', async () => {
    const node = (script: string, ...args: string[]): Promise<{ stdout: string }> =>
      runCommand(process.execPath, [script, ...args], { timeoutMs: TIMEOUT_MS, cwd: folder })
    symlinkSync(TOOLS ?? '', join(folder, 'node_modules'))
    writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
    writeFileSync(join(folder, 'program.ts'), PROGRAM)
    const generator = join(TOOLS ?? '', 'openapi-typescript/bin/cli.js')
    await node(generator, join(ROOT, 'openapi.json'), '--output', join(folder, 'generated.ts'))
    const options = ['--noEmit', '--strict', '--exactOptionalPropertyTypes', '--allowImportingTsExtensions']
    const modules = ['--module', 'nodenext', '--target', 'esnext', '--skipLibCheck']
    const types = ['--typeRoots', join(ROOT, 'node_modules/@types'), '--types', 'node']
    await node(join(ROOT, 'node_modules/typescript/bin/tsc'), ...options, ...modules, ...types, 'program.ts')
    const { stdout } = await node('program.ts', server.url, server.key)
    assert.deepEqual(stdout.trim().split('\n'), [
      'Bind /inputs false strict',
      'Named /datasets true strict',
      'Tmpfs /scratch false 16',
      'DiskImage /tools false Raw',
      '404 sandbox_not_found',
    ])
  })
})
