import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { test } from 'node:test'

test('a logged error has its message, code and causes, and nothing that a library attached to it', () => {
  const log = join(import.meta.dirname, '../../src/lib/log.ts')
  const script = `
    const { makeLog } = await import(${JSON.stringify(log)})
    const error = Object.assign(new Error('outer', { cause: new Error('inner') }), { code: 'E1', client: { values: ['s3cret'] } })
    makeLog('info').warn({ error, err: error, password: 's3cret', one: { password: 's3cret' } }, 'said')`
  const run = `${process.execPath} --input-type=module -e "$SCRIPT" 2>&1`
  const line = execFileSync('sh', ['-c', run], { env: { ...process.env, SCRIPT: script }, encoding: 'utf8' })
  assert.match(line, /"message":"outer","code":"E1"/)
  assert.match(line, /"cause":\{"type":"Error","message":"inner"/)
  assert.doesNotMatch(line, /s3cret/)
})
