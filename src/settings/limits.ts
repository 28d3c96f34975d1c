import { integerBetween, type Setting } from './setting.ts'

/** The limits of a server process: how many requests, streams and connections it serves at once, and at which rates. */
export const LIMIT_SETTINGS = {
  waitCapacity: {
    variable: 'SANDYARD_WAIT_CAPACITY',
    flag: null,
    fallback: '1024',
    unit: 'requests',
    meaning:
      'the maximum number of requests that wait for a sandbox, per server process; further ones are answered 429',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  logStreamCapacity: {
    variable: 'SANDYARD_LOG_STREAM_CAPACITY',
    flag: null,
    fallback: '1024',
    unit: 'streams',
    meaning:
      'the maximum number of logs that are being read or followed, per server process; further ones are answered 429',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  logStreamsPerOrg: {
    variable: 'SANDYARD_LOG_STREAMS_PER_ORG',
    flag: null,
    fallback: '256',
    unit: 'streams',
    meaning:
      'the maximum number of logs that one organization is reading or following, per server process; further ones are answered 429',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  channelsPerSandbox: {
    variable: 'SANDYARD_CHANNELS_PER_SANDBOX',
    flag: null,
    fallback: '256',
    unit: 'channels',
    meaning:
      'the maximum number of open command channels of one sandbox, per server process; further ones are answered 429',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
  channelsPerOrg: {
    variable: 'SANDYARD_CHANNELS_PER_ORG',
    flag: null,
    fallback: '2048',
    unit: 'channels',
    meaning:
      'the maximum number of open command channels of one organization, per server process; further ones are answered 429',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
  keyRequestsPerSec: {
    variable: 'SANDYARD_KEY_REQUESTS_PER_SEC',
    flag: null,
    fallback: '1000',
    unit: 'requests per s',
    meaning:
      'the maximum average rate of requests of one API key, per server process; further ones are answered 429; 0 means no limit',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  keyRequestBurst: {
    variable: 'SANDYARD_KEY_REQUEST_BURST',
    flag: null,
    fallback: '2000',
    unit: 'requests',
    meaning: 'how many requests one API key may send at once before its rate limit applies',
    parse: integerBetween(1, 10_000_000),
  } satisfies Setting<number>,
  orgRequestsPerSec: {
    variable: 'SANDYARD_ORG_REQUESTS_PER_SEC',
    flag: null,
    fallback: '2000',
    unit: 'requests per s',
    meaning:
      'the maximum average rate of requests of all keys of one organization together, per server process; 0 means no limit',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  orgRequestBurst: {
    variable: 'SANDYARD_ORG_REQUEST_BURST',
    flag: null,
    fallback: '4000',
    unit: 'requests',
    meaning: 'how many requests one organization may send at once before its rate limit applies',
    parse: integerBetween(1, 10_000_000),
  } satisfies Setting<number>,
  refusedKeysPerSec: {
    variable: 'SANDYARD_REFUSED_KEYS_PER_SEC',
    flag: null,
    fallback: '10',
    unit: 'requests per s',
    meaning:
      'the maximum average rate of failed authentications of one IP address; further ones are answered 429; 0 means no limit',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  refusedKeyBurst: {
    variable: 'SANDYARD_REFUSED_KEY_BURST',
    flag: null,
    fallback: '200',
    unit: 'requests',
    meaning: 'how many failed authentications one IP address may cause at once before its rate limit applies',
    parse: integerBetween(1, 10_000_000),
  } satisfies Setting<number>,
  orgRequestsInFlight: {
    variable: 'SANDYARD_ORG_REQUESTS_IN_FLIGHT',
    flag: null,
    fallback: '768',
    unit: 'requests',
    meaning:
      'the maximum number of requests in progress of one organization, those that wait for a sandbox included; further ones are answered 429. Keep it below SANDYARD_WAIT_CAPACITY, so that no organization takes all waits',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
  orgBodiesMib: {
    variable: 'SANDYARD_ORG_BODIES_MIB',
    flag: null,
    fallback: '64',
    unit: 'MiB',
    meaning:
      "the maximum memory for the JSON bodies of one organization's requests in progress; further requests are answered 429",
    parse: integerBetween(4, 65_536),
  } satisfies Setting<number>,
  bodiesMib: {
    variable: 'SANDYARD_BODIES_MIB',
    flag: null,
    fallback: '256',
    unit: 'MiB',
    meaning:
      "the maximum memory for the JSON bodies of all organizations' requests in progress; further requests are answered 429",
    parse: integerBetween(4, 65_536),
  } satisfies Setting<number>,
  orgRepliesMib: {
    variable: 'SANDYARD_ORG_REPLIES_MIB',
    flag: null,
    fallback: '64',
    unit: 'MiB',
    meaning:
      "the maximum memory for one organization's JSON replies of 64 KiB or more that are not yet read; further lists and large replies are answered 429",
    parse: integerBetween(8, 65_536),
  } satisfies Setting<number>,
  connectionCapacity: {
    variable: 'SANDYARD_CONNECTION_CAPACITY',
    flag: null,
    fallback: '32768',
    unit: 'connections',
    meaning:
      'the maximum number of open connections, those of workers included; further ones are answered 429 and closed',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
  connectionsPerAddress: {
    variable: 'SANDYARD_CONNECTIONS_PER_ADDRESS',
    flag: null,
    fallback: '16384',
    unit: 'connections',
    meaning:
      'the maximum number of open connections of one IP address; behind a proxy of SANDYARD_TRUSTED_PROXIES, of its requests in progress; behind any other proxy, all clients have its address',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
} as const
