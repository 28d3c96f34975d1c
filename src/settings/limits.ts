import { integerBetween, type Setting } from './setting.ts'

/** How much a server process lets go on at once, and how fast. */
export const LIMIT_SETTINGS = {
  waitCapacity: {
    variable: 'SANDYARD_WAIT_CAPACITY',
    flag: null,
    fallback: '1024',
    unit: 'requests',
    meaning: 'the most requests that wait for a sandbox at once; further ones are answered 429',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  logStreamCapacity: {
    variable: 'SANDYARD_LOG_STREAM_CAPACITY',
    flag: null,
    fallback: '1024',
    unit: 'streams',
    meaning: 'the most logs that are read or followed at once, per server process; further ones are answered 429',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  logStreamsPerOrg: {
    variable: 'SANDYARD_LOG_STREAMS_PER_ORG',
    flag: null,
    fallback: '256',
    unit: 'streams',
    meaning:
      'the most logs that one organization reads or follows at once, per server process; further ones are answered 429',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  channelsPerSandbox: {
    variable: 'SANDYARD_CHANNELS_PER_SANDBOX',
    flag: null,
    fallback: '256',
    unit: 'channels',
    meaning: 'the most open command channels of one sandbox, per server process; further ones are answered 429',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
  channelsPerOrg: {
    variable: 'SANDYARD_CHANNELS_PER_ORG',
    flag: null,
    fallback: '2048',
    unit: 'channels',
    meaning: 'the most open command channels of one organization, per server process; further ones are answered 429',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
  keyRequestsPerSec: {
    variable: 'SANDYARD_KEY_REQUESTS_PER_SEC',
    flag: null,
    fallback: '1000',
    unit: 'requests per s',
    meaning:
      'the average requests per second of one API key, per server process; further ones are answered 429; 0 means no limit',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  keyRequestBurst: {
    variable: 'SANDYARD_KEY_REQUEST_BURST',
    flag: null,
    fallback: '2000',
    unit: 'requests',
    meaning: 'the most requests that one API key may send at once',
    parse: integerBetween(1, 10_000_000),
  } satisfies Setting<number>,
  orgRequestsPerSec: {
    variable: 'SANDYARD_ORG_REQUESTS_PER_SEC',
    flag: null,
    fallback: '2000',
    unit: 'requests per s',
    meaning:
      'the average requests per second of all keys of one organization together, per server process; 0 means no limit',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  orgRequestBurst: {
    variable: 'SANDYARD_ORG_REQUEST_BURST',
    flag: null,
    fallback: '4000',
    unit: 'requests',
    meaning: 'the most requests that one organization may send at once',
    parse: integerBetween(1, 10_000_000),
  } satisfies Setting<number>,
  refusedKeysPerSec: {
    variable: 'SANDYARD_REFUSED_KEYS_PER_SEC',
    flag: null,
    fallback: '10',
    unit: 'requests per s',
    meaning:
      'the average failed authentications per second of one IP address; further ones are answered 429; 0 means no limit',
    parse: integerBetween(0, 1_000_000),
  } satisfies Setting<number>,
  refusedKeyBurst: {
    variable: 'SANDYARD_REFUSED_KEY_BURST',
    flag: null,
    fallback: '200',
    unit: 'requests',
    meaning: 'the most failed authentications at once of one IP address',
    parse: integerBetween(1, 10_000_000),
  } satisfies Setting<number>,
  orgRequestsInFlight: {
    variable: 'SANDYARD_ORG_REQUESTS_IN_FLIGHT',
    flag: null,
    fallback: '768',
    unit: 'requests',
    meaning:
      'the most requests of one organization that are being answered at once, waiting ones included; further ones are answered 429. Keep it below SANDYARD_WAIT_CAPACITY, so that no organization takes all waits',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
  orgBodiesMib: {
    variable: 'SANDYARD_ORG_BODIES_MIB',
    flag: null,
    fallback: '64',
    unit: 'MiB',
    meaning:
      "the most memory for the JSON bodies of one organization's requests at once; further ones are answered 429",
    parse: integerBetween(4, 65_536),
  } satisfies Setting<number>,
  bodiesMib: {
    variable: 'SANDYARD_BODIES_MIB',
    flag: null,
    fallback: '256',
    unit: 'MiB',
    meaning:
      "the most memory for the JSON bodies of all organizations' requests at once; further ones are answered 429",
    parse: integerBetween(4, 65_536),
  } satisfies Setting<number>,
  connectionCapacity: {
    variable: 'SANDYARD_CONNECTION_CAPACITY',
    flag: null,
    fallback: '32768',
    unit: 'connections',
    meaning: 'the most open connections, those of workers included; further ones are answered 429 and closed',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
  connectionsPerAddress: {
    variable: 'SANDYARD_CONNECTIONS_PER_ADDRESS',
    flag: null,
    fallback: '16384',
    unit: 'connections',
    meaning: 'the most open connections of one IP address; behind a proxy, all clients share its address',
    parse: integerBetween(1, 1_000_000),
  } satisfies Setting<number>,
} as const
