import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readConfig, SettingError, settingRows, SETTINGS, variablesWithoutEffect } from '../../src/config.ts'

test('a flag wins over its variable, the variable over the default, and an empty variable counts as unset', () => {
  assert.equal(readConfig({}, {}).port, 8080)
  assert.equal(readConfig({ SANDYARD_PORT: '1' }, {}).port, 1)
  assert.equal(readConfig({ SANDYARD_PORT: '1' }, { port: '2' }).port, 2)
  assert.equal(readConfig({ SANDYARD_PORT: '' }, {}).port, 8080)
  assert.equal(readConfig({ SANDYARD_SSH_PORT: 'off' }, {}).sshPort, 0)
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
    [{ SANDYARD_SSH_PORT: 'no' }, {}, /^SANDYARD_SSH_PORT is "no"; accepted: off, or a whole number from 0 to 65535$/],
    [{ SANDYARD_LOG_LEVEL: 'loud' }, {}, /trace, debug, info/],
    [{ SANDYARD_DRIVER: 'docker' }, {}, /auto, microsandbox, oci, kubernetes, simulated/],
    [{ SANDYARD_API_KEY: 'short' }, {}, /at least 8 characters/],
    [{ SANDYARD_NETWORK_DENY: 'worker,lan' }, {}, /none, or up to 64 of these with commas between: worker, database/],
    [{ SANDYARD_SECRET_KEY: 'c2hvcnQ=' }, {}, /32 bytes/],
    [{ SANDYARD_NETWORK_POOL: '10.0.0.0/30' }, {}, /^SANDYARD_NETWORK_POOL is "10.0.0.0\/30"; accepted: an IPv4 block/],
    [{ SANDYARD_NETWORK_POOL: 'fd00::/8' }, {}, /SANDYARD_NETWORK_POOL/],
    [{ SANDYARD_NETWORK_POOL: 'lan' }, {}, /SANDYARD_NETWORK_POOL/],
    [
      { SANDYARD_DEFAULT_REGISTRY: 'https://registry.lan/' },
      {},
      /^SANDYARD_DEFAULT_REGISTRY is "https.*accepted: the host/,
    ],
    [{ SANDYARD_DEFAULT_REGISTRY: 'registry.lan/mirror' }, {}, /registry.example:5000, without a scheme or path$/],
    [{ SANDYARD_UID_RANGE: '165536-200000' }, {}, /at least 65536 user ids from 165536 to 2147483647/],
    [{ SANDYARD_UID_RANGE: '100000-300000' }, {}, /SANDYARD_UID_RANGE/],
    [{ SANDYARD_UID_RANGE: '300000:65536' }, {}, /FIRST-LAST/],
    [{ SANDYARD_REGISTRIES_ALLOWED: 'http://localhost:5000' }, {}, /hosts such as localhost:5000/],
    [{ SANDYARD_WORKER_METRICS_ADDRESS: '9480' }, {}, /host:port, such as 127.0.0.1:9480 or \[::1\]:9480/],
    [{ SANDYARD_WORKER_METRICS_ADDRESS: 'localhost:65536' }, {}, /SANDYARD_WORKER_METRICS_ADDRESS/],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: 'localhost:4318' }, {}, /^OTEL_EXPORTER_OTLP_ENDPOINT is "localhost:4318"/],
    [{ OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' }, {}, /accepted: http\/json/],
    [{ OTEL_EXPORTER_OTLP_HEADERS: 'secret' }, {}, /^OTEL_EXPORTER_OTLP_HEADERS is malformed; accepted: NAME=VALUE/],
    [{ OTEL_EXPORTER_OTLP_HEADERS: 'a=b%0d%0ac:d' }, {}, /OTEL_EXPORTER_OTLP_HEADERS/],
    [{ OTEL_TRACES_SAMPLER_ARG: '2' }, {}, /a number from 0 to 1/],
    [{ SANDYARD_METRICS_KEY: 'short' }, {}, /^SANDYARD_METRICS_KEY is malformed/],
    [{ SANDYARD_DASHBOARD: 'proxied' }, {}, /^SANDYARD_DASHBOARD is "proxied"; accepted: on, off/],
    [
      { SANDYARD_OIDC_ISSUER: 'http://accounts.example.org' },
      {},
      /an https:\/\/ URL, or an http:\/\/ URL of this machine/,
    ],
    [{ SANDYARD_OIDC_ISSUER: 'https://me:pw@accounts.example.org' }, {}, /SANDYARD_OIDC_ISSUER/],
    [{ SANDYARD_OIDC_LABEL: 'x'.repeat(65) }, {}, /at most 64 characters/],
  ]
  for (const [env, flags, message] of refused)
    assert.throws(() => readConfig(env, flags), (error) => error instanceof SettingError && message.test(error.message), String(message)) // prettier-ignore
})

test('settings that contradict each other are refused with both names', () => {
  const issuer = { SANDYARD_OIDC_ISSUER: 'https://accounts.example.org' }
  // prettier-ignore
  const refused: readonly (readonly [NodeJS.ProcessEnv, RegExp])[] = [
    [{ SANDYARD_OIDC_CLIENT_ID: 'x' }, /^SANDYARD_OIDC_ISSUER and SANDYARD_OIDC_CLIENT_ID belong together: set both or neither$/],
    [issuer, /^SANDYARD_OIDC_ISSUER and SANDYARD_OIDC_CLIENT_ID belong together/],
    [{ SANDYARD_OIDC_CLIENT_SECRET: 'x' }, /^SANDYARD_OIDC_CLIENT_SECRET has no effect without SANDYARD_OIDC_ISSUER: set both, or only the latter$/],
    [{ SANDYARD_OIDC_LABEL: 'x' }, /^SANDYARD_OIDC_LABEL has no effect without SANDYARD_OIDC_ISSUER/],
    [{ ...issuer, SANDYARD_OIDC_CLIENT_ID: 'x', SANDYARD_DASHBOARD: 'off' }, /^SANDYARD_OIDC_ISSUER has no effect while SANDYARD_DASHBOARD is "off": set only one of them$/],
    [{ SANDYARD_TLS_CERT: '/a' }, /^SANDYARD_TLS_CERT and SANDYARD_TLS_KEY belong together/],
    [{ SANDYARD_TLS_KEY: '/a' }, /^SANDYARD_TLS_CERT and SANDYARD_TLS_KEY belong together/],
    [{ SANDYARD_TLS_CERT: '/a', SANDYARD_TLS_KEY: '/b', SANDYARD_INSECURE: 'true' }, /^SANDYARD_INSECURE and SANDYARD_TLS_CERT exclude each other: choose one$/],
    [{ SANDYARD_KUBERNETES_REGISTRY_CERT: '/a' }, /^SANDYARD_KUBERNETES_REGISTRY_CERT and SANDYARD_KUBERNETES_REGISTRY_KEY belong/],
    [{ SANDYARD_KUBERNETES_REGISTRY_CERT: '/a', SANDYARD_KUBERNETES_REGISTRY_KEY: '/b' }, /_CERT has no effect without SANDYARD_KUBERNETES_REGISTRY:/],
    [{ SANDYARD_KUBERNETES_REGISTRY_LISTEN: '127.0.0.1:1' }, /_LISTEN has no effect without SANDYARD_KUBERNETES_REGISTRY:/],
    [{ DATABASE_OWNER_URL: 'postgres://a@b/x' }, /^DATABASE_OWNER_URL has no effect without DATABASE_URL/],
    [{ SANDYARD_API_KEY: '12345678', SANDYARD_FIRST_KEY_FILE: '/a' }, /^SANDYARD_API_KEY and SANDYARD_FIRST_KEY_FILE exclude each other/],
    [{ SANDYARD_JOIN_TOKEN: 'x', SANDYARD_JOIN_TOKEN_FILE: '/a' }, /^SANDYARD_JOIN_TOKEN and SANDYARD_JOIN_TOKEN_FILE exclude/],
    [{ SANDYARD_VOLUME_POOL_GIB: '1', SANDYARD_SHARED_VOLUMES_DIR: '/a' }, /^SANDYARD_VOLUME_POOL_GIB and SANDYARD_SHARED_VOLUMES_DIR exclude/],
    [{ SANDYARD_DISK_MIB: '70000' }, /^SANDYARD_DISK_MIB is "70000"; accepted: at most the value of SANDYARD_DISK_MAX_MIB, which is 65536$/],
    [{ SANDYARD_DISK_MIB: '8192', SANDYARD_DISK_MAX_MIB: '4096' }, /SANDYARD_DISK_MAX_MIB, which is 4096$/],
    [{ SANDYARD_IMAGE_MAX_GIB: '30', SANDYARD_IMAGE_STORE_GIB: '25' }, /^SANDYARD_IMAGE_MAX_GIB is "30".*SANDYARD_IMAGE_STORE_GIB/],
    [{ SANDYARD_SESSIONS_PER_SANDBOX: '2000' }, /SANDYARD_SESSIONS_PER_ORG/],
    [{ SANDYARD_CHANNELS_PER_SANDBOX: '2', SANDYARD_CHANNELS_PER_ORG: '1' }, /SANDYARD_CHANNELS_PER_ORG/],
    [{ SANDYARD_LOG_STREAMS_PER_ORG: '2000' }, /SANDYARD_LOG_STREAM_CAPACITY/],
    [{ SANDYARD_ORG_BODIES_MIB: '300' }, /SANDYARD_BODIES_MIB/],
    [{ SANDYARD_CONNECTIONS_PER_ADDRESS: '40000' }, /SANDYARD_CONNECTION_CAPACITY/],
    [{ SANDYARD_KEY_REQUEST_BURST: '1', SANDYARD_KEY_REQUESTS_PER_SEC: '0' }, /_BURST has no effect while SANDYARD_KEY_REQUESTS_PER_SEC is "0"/],
    [{ SANDYARD_ORG_REQUEST_BURST: '1', SANDYARD_ORG_REQUESTS_PER_SEC: '0' }, /SANDYARD_ORG_REQUESTS_PER_SEC/],
    [{ SANDYARD_REFUSED_KEY_BURST: '1', SANDYARD_REFUSED_KEYS_PER_SEC: '0' }, /SANDYARD_REFUSED_KEYS_PER_SEC/],
  ]
  for (const [env, message] of refused)
    assert.throws(() => readConfig(env, {}), (error) => error instanceof SettingError && message.test(error.message), String(message)) // prettier-ignore
})

test('a limit below the default of what it bounds lowers both, and a default contradicts nothing', () => {
  readConfig({ SANDYARD_DISK_MAX_MIB: '4096', SANDYARD_IMAGE_STORE_GIB: '5', SANDYARD_LOG_STREAM_CAPACITY: '10' }, {})
  readConfig({ SANDYARD_DASHBOARD: 'off', SANDYARD_KEY_REQUESTS_PER_SEC: '0', SANDYARD_SHARED_VOLUMES_DIR: '/a' }, {})
  readConfig({ SANDYARD_INSECURE: 'false', SANDYARD_TLS_CERT: '/a' }, { 'tls-key': '/b' })
})

test('the host of the default registry is read in lower case, as references write it', () => {
  assert.equal(readConfig({ SANDYARD_DEFAULT_REGISTRY: 'Registry.LAN:5000' }, {}).defaultRegistry, 'registry.lan:5000')
})

test('the URL of a database has a scheme of PostgreSQL, and no error contains its password', () => {
  const refused = [
    'mysql://a:password@db/x',
    'db.internal:5432/x',
    'host=db password=password',
    'postgres://a@b:99999/x',
  ]
  for (const variable of ['DATABASE_URL', 'DATABASE_OWNER_URL'])
    for (const url of refused)
      assert.throws(() => readConfig({ [variable]: url }, {}), { message: `${variable} is malformed; accepted: postgres://USER:PASSWORD@HOST:PORT/DATABASE` }) // prettier-ignore
  for (const url of ['postgres://a:b@db/x', 'postgresql://a@[fd00::1]:5432/x', 'postgres://a:b@/x?host=/run/postgresql', 'socket:/run/postgresql?db=x', '/run/postgresql x'])
    assert.equal(readConfig({ DATABASE_URL: url }, {}).databaseUrl, url) // prettier-ignore
})

test("the operator's denials are a list of words, groups and blocks; `none` is the empty list", () => {
  const of = (value: string): readonly string[] => readConfig({ SANDYARD_NETWORK_DENY: value }, {}).networkDeny
  assert.deepEqual(of(''), ['metadata', 'link_local', 'worker', 'database', 'control_plane'])
  assert.deepEqual(of('worker, private,10.0.0.0/8,FD00::/8'), ['worker', 'private', '10.0.0.0/8', 'fd00::/8'])
  assert.deepEqual(of('none'), [])
})

test('a variable that looks like a misspelling of a setting is refused with that setting', () => {
  const refused = [
    ['SANDYARD_REQUIRE_ISOLATON', 'SANDYARD_REQUIRE_ISOLATION'],
    ['SANDYARD_NETWORK_DENNY', 'SANDYARD_NETWORK_DENY'],
    ['SANDYARD_PORTS', 'SANDYARD_PORT'],
    ['SANDYARD_DATADIR', 'SANDYARD_DATA_DIR'],
  ] as const
  for (const [variable, setting] of refused) {
    const message = `${variable} is no setting; did you mean ${setting}?`
    assert.throws(() => readConfig({ [variable]: 'x' }, {}), (error) => error instanceof SettingError && error.message === message, variable) // prettier-ignore
    readConfig({ [variable]: '' }, {})
  }
})

test('other variables that are named like settings are accepted, and listed as without effect', () => {
  const own = { SANDYARD_HOME: '/opt/sandyard', SANDYARD_PROT: '1' }
  const others = {
    SANDYARD_SETUP: 'skip',
    SANDYARD_TEST_PROGRAM: 'x',
    SANDYARD_SERVICE_HOST: '10.0.0.1',
    SANDYARD_SERVER_SERVICE_PORT_HTTP: '8080',
    SANDYARD_SERVER_PORT_8080_TCP_ADDR: '10.0.0.1',
    SANDYARD_PORT: '8080',
    PORT: '1',
  }
  readConfig({ ...own, ...others }, {})
  assert.deepEqual(variablesWithoutEffect({ ...own, ...others }), ['SANDYARD_HOME', 'SANDYARD_PROT'])
})

test('a relative data folder is relative to the folder in which the program starts', () => {
  assert.equal(readConfig({ SANDYARD_DATA_DIR: 'here' }, {}).dataDir, `${process.cwd()}/here`)
})

test('no two settings share a variable or a flag, and each setting has a description', () => {
  const rows = settingRows()
  assert.equal(rows.length, Object.keys(SETTINGS).length)
  for (const column of [0, 1] as const) {
    const names = rows.map((row) => row[column]).filter((name) => name !== '')
    assert.equal(new Set(names).size, names.length)
  }
  for (const [variable, , , unit, meaning] of rows) assert.ok(unit !== '' && meaning !== '', variable)
})
