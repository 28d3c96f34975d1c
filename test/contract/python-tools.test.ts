import assert from 'node:assert/strict'
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { tryCommand } from '../../src/lib/run-command.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'

// Tools of PyPI that read openapi.json. `npm run test:contract` installs them.

const LIMIT_MS = 360_000
const PYTHON = process.env['SANDYARD_TEST_CONTRACT_PYTHON']
const DOCUMENT = join(import.meta.dirname, '../../openapi.json')
const CHECKS = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_schema_conformance',
  'response_headers_conformance',
  'negative_data_rejection',
]
/** Operations that wait or stay open for as long as they are asked to, and the one that revokes the key of the test. */
const LEFT_OUT = [
  'open_agent',
  'read_sandbox_logs',
  'follow_sandbox_metrics',
  'stream_events',
  'wait_for_sandbox',
  'wait_for_sandbox_by_name',
  'revoke_api_key',
]

/** The module that says which bodies Schemathesis must not send. */
const HOOKS = 'schemathesis_hooks'

/** Parameters that let a request wait for capacity that the server doesn't have. */
const WAITS = ['wait_for', 'wait_timeout', 'on_timeout']

/** Writes the document without the parameters in `WAITS`. Returns its path. */
function writeWithoutWaits(folder: string): string {
  const document = JSON.parse(readFileSync(DOCUMENT, 'utf8'))
  for (const operations of Object.values<Record<string, { parameters?: { name: string }[] }>>(document.paths))
    for (const operation of Object.values(operations))
      operation.parameters = (operation.parameters ?? []).filter(({ name }) => !WAITS.includes(name))
  const path = join(folder, 'without-waits.json')
  writeFileSync(path, JSON.stringify(document))
  return path
}

describe('openapi.json and a server', { skip: PYTHON === undefined && '`npm run test:contract` runs it' }, () => {
  let server: RealServer
  let folder: string
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'sandyard-contract-'))
    server = await startServer({
      SANDYARD_DRIVER: 'simulated',
      SANDYARD_KEY_REQUESTS_PER_SEC: '0',
      SANDYARD_ORG_REQUESTS_PER_SEC: '0',
      SANDYARD_REFUSED_KEYS_PER_SEC: '0',
    })
  })
  after(async () => {
    rmSync(folder, { recursive: true })
    await server.close()
  })

  async function run(
    program: string,
    args: readonly string[],
    more: Readonly<Record<string, string>> = {},
  ): Promise<string> {
    const bin = PYTHON ?? ''
    const path = `${bin}:${process.env['PATH'] ?? ''}`
    const { code, stdout, stderr } = await tryCommand(join(bin, program), args, {
      timeoutMs: LIMIT_MS * TIMEOUT_FACTOR,
      env: { ...process.env, PATH: path, PYTHONDONTWRITEBYTECODE: '1', ...more },
      cwd: folder,
    })
    assert.equal(code, 0, `${stdout}\n${stderr}`)
    return stdout
  }

  test('the client that openapi-python-client generates creates, lists and deletes', async () => {
    const generated = ['--output-path', join(folder, 'generated'), '--meta', 'none', '--fail-on-warning']
    await run('openapi-python-client', ['generate', '--path', DOCUMENT, ...generated])
    copyFileSync(join(import.meta.dirname, 'generated-python-walk.py'), join(folder, 'walk.py'))
    const said = await run('python', ['walk.py', server.url, server.key])
    assert.deepEqual(said.trim().split('\n'), [
      'MountBind /inputs False',
      'MountNamed /models True',
      'MountTmpfs /scratch False',
      'MountDiskImage /tools False',
      '404 sandbox_not_found',
    ])
  })

  test('Schemathesis finds no status that is not documented, no 5xx and no invalid request that is accepted', async (t) => {
    copyFileSync(join(import.meta.dirname, `${HOOKS}.py`), join(folder, `${HOOKS}.py`))
    const words = [
      'run',
      writeWithoutWaits(folder),
      `--url=${server.url}`,
      `--header=Authorization: Bearer ${server.key}`,
      '--phases=examples,coverage,fuzzing',
      '--max-examples=15',
      '--max-time=300',
      '--seed=1',
      '--continue-on-failure',
      '--no-shrink',
      `--checks=${CHECKS.join(',')}`,
      ...LEFT_OUT.map((id) => `--exclude-operation-id=${id}`),
      '--request-timeout=60',
      '--warnings=off',
    ]
    const said = await run('st', words, { SCHEMATHESIS_HOOKS: HOOKS })
    t.diagnostic(/[0-9]+ generated.*/.exec(said)?.[0] ?? said)
  })
})
