import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { test } from 'node:test'
import { stripVTControlCharacters } from 'node:util'
import { formatPretty } from '../../src/lib/pretty-log.ts'

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
  assert.match(line, /^\{"level":"warn","time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"/)
})

test('at a terminal, a line has time, level, message and fields, and no control character reaches the terminal', () => {
  const time = '2026-11-22T12:00:00.000Z'
  const plain = (line: object): string => stripVTControlCharacters(formatPretty(JSON.stringify({ time, ...line })))
  assert.equal(
    plain({ level: 'info', pid: 1, hostname: 'h', name: 'my box', org: 'acme', msg: 'sandbox runs' }),
    `${time} INFO  sandbox runs name="my box" org=acme\n`,
  )
  const error = { type: 'Error', message: 'no', stack: 'Error: no\n    at there', cause: { message: 'inner' } }
  assert.equal(
    plain({ level: 'error', error, msg: 'broke' }),
    `${time} ERROR broke\n    Error: no\n        at there\n    caused by: inner\n`,
  )
  const hostile = '\u001b[2Jcleared\u0007\u009b1m\u202e\u061c\u200e\u200fevil\nforged line'
  const shown = formatPretty(
    JSON.stringify({ time, level: 'warn', msg: hostile, name: hostile, error: { message: hostile } }),
  )
  const [first, ...colored] = shown.split('\u001b')
  for (const part of colored) assert.match(part, /^\[\d+m/) // our own colors are the only commands
  const withoutColors = [first, ...colored.map((part) => part.replace(/^\[\d+m/, ''))].join('')
  assert.doesNotMatch(withoutColors, /[^\P{Cc}\n]|[\u202e\u061c\u200e\u200f]/u)
  assert.equal(withoutColors.split('\n').length, 4)
})
