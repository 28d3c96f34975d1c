import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { test } from 'node:test'
import { formatClientSetup } from '../../src/cli/commands/print-client-setup.ts'
import { defaultDataDir } from '../../src/config.ts'

const URL = 'http://127.0.0.1:8080'
const SERVING = { url: URL, ownCertificate: null }

/** The variables that a shell has after it ran the printed lines. */
function evaluate(
  script: string,
  names: readonly string[],
  env: Readonly<Record<string, string>> = {},
): readonly string[] {
  const print = names.map((name) => `printf '%s\\0' "$${name}"`).join('; ')
  const { stdout, stderr } = spawnSync('sh', ['-c', `${script}\n${print}`], { encoding: 'utf8', env })
  assert.equal(stderr, '')
  return stdout.split('\0').slice(0, -1)
}

test('the printed exports contain what the next command needs: URL, key, and the data folder unless it is the default', () => {
  const names = ['MSB_API_URL', 'MSB_API_KEY', 'SANDYARD_DATA_DIR']
  const shown = { kind: 'shown', key: 'msb_key' } as const
  for (const dataDir of ['/srv/sandyard', "/srv/it's a folder; $(false)"])
    assert.deepEqual(evaluate(formatClientSetup({ dataDir, databaseUrl: null }, SERVING, shown), names), [
      URL,
      'msb_key',
      dataDir,
    ])
  const usual = formatClientSetup({ dataDir: defaultDataDir(), databaseUrl: null }, SERVING, shown)
  assert.doesNotMatch(usual, /SANDYARD_DATA_DIR/)
})

test('the printed exports leave a key alone that they do not know, and show no password', () => {
  const config = { dataDir: '/srv/x', databaseUrl: 'postgresql://me:secret@db/x' }
  const script = formatClientSetup(config, SERVING, { kind: 'existing' })
  assert.deepEqual(evaluate(script, ['MSB_API_KEY'], { MSB_API_KEY: 'mine' }), ['mine'])
  assert.doesNotMatch(script, /secret/)
  assert.match(script, /DATABASE_URL/)
})

test('a server with a certificate of its own tells clients to trust it', () => {
  const dataDir = '/srv/a b'
  const serving = { url: 'https://127.0.0.1:1', ownCertificate: `${dataDir}/tls-certificate.pem` }
  const script = formatClientSetup({ dataDir, databaseUrl: null }, serving, { kind: 'existing' })
  assert.deepEqual(evaluate(script, ['MSB_API_URL', 'SSL_CERT_FILE']), [serving.url, serving.ownCertificate])
})
