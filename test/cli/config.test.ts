import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readConfig, SettingError, settingRows, SETTINGS } from '../../src/config.ts'

test('a flag wins over its variable, the variable over the default, and an empty variable counts as unset', () => {
  assert.equal(readConfig({}, {}).port, 8080)
  assert.equal(readConfig({ SANDYARD_PORT: '1' }, {}).port, 1)
  assert.equal(readConfig({ SANDYARD_PORT: '1' }, { port: '2' }).port, 2)
  assert.equal(readConfig({ SANDYARD_PORT: '' }, {}).port, 8080)
  assert.equal(readConfig({}, {}).databaseUrl, null)
})

test('an invalid value is refused with its flag or variable, the value, and what is accepted', () => {
  const refused: readonly (readonly [NodeJS.ProcessEnv, Record<string, string>, RegExp])[] = [
    [{ SANDYARD_PORT: '65536' }, {}, /^SANDYARD_PORT is "65536"; accepted: a whole number from 0 to 65535$/],
    [{}, { port: '-1' }, /^--port is "-1"/],
    [{}, { port: '' }, /^--port is ""/],
    [{}, { host: '' }, /^--host is ""/],
    [{}, { 'data-dir': '' }, /^--data-dir is ""/],
    [{ SANDYARD_PORT: '0x10' }, {}, /SANDYARD_PORT/],
    [{ SANDYARD_LOG_LEVEL: 'loud' }, {}, /trace, debug, info/],
    [{ SANDYARD_DRIVER: 'docker' }, {}, /auto, microsandbox, oci, simulated/],
    [{ SANDYARD_API_KEY: 'short' }, {}, /at least 8 characters/],
    [{ SANDYARD_SECRET_KEY: 'c2hvcnQ=' }, {}, /32 bytes/],
  ]
  for (const [env, flags, message] of refused)
    assert.throws(() => readConfig(env, flags), (error) => error instanceof SettingError && message.test(error.message), String(message)) // prettier-ignore
})

test('a relative data folder is relative to the folder in which the program starts', () => {
  assert.equal(readConfig({ SANDYARD_DATA_DIR: 'here' }, {}).dataDir, `${process.cwd()}/here`)
})

test('no two settings share a variable or a flag, and each says what it means', () => {
  const rows = settingRows()
  assert.equal(rows.length, Object.keys(SETTINGS).length)
  for (const column of [0, 1] as const) {
    const names = rows.map((row) => row[column]).filter((name) => name !== '')
    assert.equal(new Set(names).size, names.length)
  }
  for (const [variable, , , unit, meaning] of rows) assert.ok(unit !== '' && meaning !== '', variable)
})
