import { wholeNumber, type Setting } from '../lib/setting.ts'

/** How much a server process lets go on at once. */
export const LIMIT_SETTINGS = {
  waitCapacity: {
    variable: 'SANDYARD_WAIT_CAPACITY',
    flag: null,
    fallback: '1024',
    unit: 'requests',
    meaning: 'how many requests may wait for a sandbox at once; more are answered 429',
    parse: wholeNumber(0, 1_000_000),
  } satisfies Setting<number>,
  logStreamCapacity: {
    variable: 'SANDYARD_LOG_STREAM_CAPACITY',
    flag: null,
    fallback: '1024',
    unit: 'streams',
    meaning: 'the most logs that are read or followed at once, counted by each server process; more are answered 429',
    parse: wholeNumber(0, 1_000_000),
  } satisfies Setting<number>,
  logStreamsPerOrg: {
    variable: 'SANDYARD_LOG_STREAMS_PER_ORG',
    flag: null,
    fallback: '256',
    unit: 'streams',
    meaning: 'the most logs that one organization reads or follows at once, counted alike; more are answered 429',
    parse: wholeNumber(0, 1_000_000),
  } satisfies Setting<number>,
  channelsPerSandbox: {
    variable: 'SANDYARD_CHANNELS_PER_SANDBOX',
    flag: null,
    fallback: '256',
    unit: 'channels',
    meaning:
      'the most command channels that one sandbox has open at once, counted by each server process; more are answered 429',
    parse: wholeNumber(1, 1_000_000),
  } satisfies Setting<number>,
  channelsPerOrg: {
    variable: 'SANDYARD_CHANNELS_PER_ORG',
    flag: null,
    fallback: '2048',
    unit: 'channels',
    meaning:
      'the most command channels that one organization has open at once, counted by each server process; more are answered 429',
    parse: wholeNumber(1, 1_000_000),
  } satisfies Setting<number>,
} as const
