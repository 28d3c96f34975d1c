import { SAMPLERS, type SamplerName } from '../lib/tracing/sampler.ts'
import { nonEmptyText, oneOf, type Setting } from './setting.ts'

/** Accepts an http or https URL without a user, a query or a fragment. */
const collectorUrl: Setting<URL>['parse'] = (seen) => {
  const url = URL.parse(seen)
  const isFine =
    url !== null &&
    /^https?:$/.test(url.protocol) &&
    url.username + url.password + url.search + url.hash === '' &&
    url.hostname !== ''
  return isFine ? { value: url } : { accepted: 'an http:// or https:// URL without a user, a query or a fragment' }
}

/** Accepts `NAME=VALUE` pairs, separated by commas. Values are percent-encoded, as W3C Baggage has it. */
function pairs(isName: (name: string) => boolean): Setting<Readonly<Record<string, string>>>['parse'] {
  return (seen) => {
    const entries: [string, string][] = []
    for (const pair of seen.split(',').filter((one) => one.trim() !== '')) {
      const [, name = '', encoded = ''] = /^\s*([^=\s]+)\s*=\s*(.*?)\s*$/.exec(pair) ?? []
      const value = decode(encoded)
      if (!isName(name) || value === null || /\p{Cc}/u.test(value))
        return { accepted: 'NAME=VALUE pairs, separated by commas, with percent-encoded values' }
      entries.push([name, value])
    }
    return { value: Object.fromEntries(entries) }
  }
}

function decode(text: string): string | null {
  try {
    return decodeURIComponent(text)
  } catch {
    return null
  }
}

/** Accepts a number from 0 to 1. */
const ratio: Setting<number>['parse'] = (seen) => {
  const value = /^[\d.]{1,20}$/.test(seen) ? Number(seen) : Number.NaN
  return value >= 0 && value <= 1 ? { value } : { accepted: 'a number from 0 to 1' }
}

/** The settings of traces. Their names, and what they accept, are OpenTelemetry's. */
export const TRACING_SETTINGS = {
  otlpEndpoint: {
    variable: 'OTEL_EXPORTER_OTLP_ENDPOINT',
    flag: null,
    fallback: null,
    unit: 'URL',
    meaning: 'the collector that gets traces of starts, at the path `/v1/traces` below this URL (default: no traces)',
    parse: collectorUrl,
  } satisfies Setting<URL>,
  otlpTracesEndpoint: {
    variable: 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT',
    flag: null,
    fallback: null,
    unit: 'URL',
    meaning: 'the whole URL for traces; it overrides `OTEL_EXPORTER_OTLP_ENDPOINT`',
    parse: collectorUrl,
  } satisfies Setting<URL>,
  otlpHeaders: {
    variable: 'OTEL_EXPORTER_OTLP_HEADERS',
    flag: null,
    fallback: null,
    unit: 'NAME=VALUE,…',
    meaning: 'headers for the collector, such as a credential; values are percent-encoded and never logged',
    isSecret: true,
    parse: pairs((name) => /^[\w!#$%&'*+.^`|~-]+$/.test(name)),
  } satisfies Setting<Readonly<Record<string, string>>>,
  otlpProtocol: {
    variable: 'OTEL_EXPORTER_OTLP_PROTOCOL',
    flag: null,
    fallback: null,
    unit: 'http/json',
    meaning: 'the protocol to the collector: always OTLP over HTTP in JSON; any other is refused',
    parse: oneOf<'http/json'>(['http/json']),
  } satisfies Setting<'http/json'>,
  otelServiceName: {
    variable: 'OTEL_SERVICE_NAME',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning: '`service.name` in traces (default: that of `OTEL_RESOURCE_ATTRIBUTES`, or `sandyard`)',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  otelResourceAttributes: {
    variable: 'OTEL_RESOURCE_ATTRIBUTES',
    flag: null,
    fallback: null,
    unit: 'NAME=VALUE,…',
    meaning: 'attributes of the server process in traces; values are percent-encoded',
    parse: pairs((name) => name !== ''),
  } satisfies Setting<Readonly<Record<string, string>>>,
  otelTracesSampler: {
    variable: 'OTEL_TRACES_SAMPLER',
    flag: null,
    fallback: 'parentbased_always_on',
    unit: SAMPLERS.join(', '),
    meaning: 'which traces are recorded; with `parentbased_…`, a client’s `traceparent` decides',
    parse: oneOf<SamplerName>(SAMPLERS),
  } satisfies Setting<SamplerName>,
  otelTracesSamplerArg: {
    variable: 'OTEL_TRACES_SAMPLER_ARG',
    flag: null,
    fallback: '1',
    unit: 'number',
    meaning: 'the share of traces that the samplers `…traceidratio` record, from 0 to 1',
    parse: ratio,
  } satisfies Setting<number>,
} as const
