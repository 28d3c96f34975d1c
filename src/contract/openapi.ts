import type { TSchema } from 'typebox'
import { publicCode, PROBLEMS, type ProblemCode } from '../domain/problem.ts'
import { ErrorReply } from './common.ts'
import {
  conditionParameters,
  CONDITION_HEADERS,
  replyHeaders,
  COMMON_HEADERS,
  hasETag,
  NOT_MODIFIED,
} from './openapi-conditions.ts'
import { problemsOf, type Operation } from './operation.ts'
import { documentComponents, documentProperty, exampleOf } from './openapi-documentation.ts'
import { EXAMPLE_INSTANT } from './openapi-examples.ts'
import { isRecord, renderSchema, type Components } from './openapi-schemas.ts'
import { OPERATIONS } from './operations.ts'
import { TAGS } from './openapi-tags.ts'

/** The version of the API. */
const API_VERSION = '0.1.0'

/** Renders the OpenAPI 3.1 document of the API. The document depends only on the table of operations. */
export function renderDocument(): object {
  const components: Components = new Map()
  const tagsInUse = [...new Set(Object.values(OPERATIONS).map(({ tag }) => tag))]
  const paths: Record<string, Record<string, unknown>> = {}
  for (const operation of Object.values(OPERATIONS)) {
    const methods = (paths[operation.path] ??= {})
    methods[operation.method.toLowerCase()] = renderOperation(operation, components)
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Sandyard',
      version: API_VERSION,
      description:
        'Create, start, stop and delete the sandboxes of an organization, run commands in them, and see what happened. An unknown field of a body is ignored if it asks for nothing (null, false, or empty), and refused by name otherwise.',
      contact: { name: 'Sandyard' },
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '/' }],
    security: [{ api_key: [] }],
    tags: tagsInUse.map((name) => ({ name, description: TAGS[name] ?? '' })),
    paths,
    components: {
      securitySchemes: {
        api_key: {
          type: 'http',
          scheme: 'bearer',
          description: "An organization's API key. Requests with it act on that organization.",
        },
      },
      headers: {
        RequestId: { description: 'Identifies this request in the logs.', schema: { type: 'string' } },
        ...CONDITION_HEADERS,
        RetryAfter: { description: 'How many seconds to wait before a retry.', schema: { type: 'integer' } },
      },
      examples: renderExamples(components),
      schemas: documentComponents(components),
    },
  }
}

/**
 * Renders the document as text. The API serves it, `sandyard openapi` prints it, and the repository contains it as
 * openapi.json.
 */
export function renderDocumentText(): string {
  return `${JSON.stringify(renderDocument(), null, 2)}\n`
}

function renderOperation(operation: Operation, components: Components): object {
  const { id, tag, summary, description, params, query, headers, body, takes, reply, access } = operation
  const hasBody = Object.keys(propertiesOf(body)).length > 0
  return {
    operationId: id,
    tags: [tag],
    summary,
    description: description ?? `${summary}.`,
    ...(access === 'none' ? { security: [] } : {}),
    parameters: [
      ...renderParameters(params, 'path', components),
      ...renderParameters(query, 'query', components),
      ...(headers === undefined ? [] : renderParameters(headers, 'header', components)),
      ...conditionParameters(operation),
    ],
    ...(hasBody
      ? {
          requestBody: {
            required: true,
            content: { 'application/json': renderJson(body, components) },
          },
        }
      : {}),
    ...(takes === 'bytes' ? { requestBody: { required: false, content: BYTES } } : {}),
    responses: {
      [reply.status]: {
        description: reply.description,
        headers: replyHeaders(operation),
        ...(reply.kind === 'json' ? { content: { 'application/json': renderJson(reply.schema, components) } } : {}),
        ...(reply.kind === 'bytes' ? { content: BYTES } : {}),
        ...(reply.kind === 'events' ? { content: renderEvents(reply.schema, components) } : {}),
        ...(reply.kind === 'text'
          ? { content: { 'text/plain': { schema: { type: 'string' }, example: 'sandyard_up 1\n' } } }
          : {}),
      },
      ...(hasETag(operation) && operation.method === 'GET' ? NOT_MODIFIED : {}),
      ...renderProblems(operation, components),
    },
  }
}

/** The content of a JSON body: its schema, and an example. */
function renderJson(schema: TSchema, components: Components): object {
  const rendered = renderSchema(schema, components)
  const name = titleOf(schema)
  return {
    schema: rendered,
    ...(name === null ? { example: exampleOf(components, rendered, 'body') } : { examples: referTo([name]) }),
  }
}

function referTo(names: readonly string[]): object {
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/examples/${name}` }]))
}

/** The examples that several operations share: of bodies, by the name of their schema, and of refusals, by their code. */
function renderExamples(components: Components): object {
  const operations: readonly Operation[] = Object.values(OPERATIONS)
  const bodies = operations.flatMap(({ body, reply }) => [body, ...(reply.kind === 'json' ? [reply.schema] : [])])
  const names = new Set(bodies.map(titleOf).filter((name) => name !== null))
  const codes = new Set(operations.flatMap(problemsOf))
  return {
    ...Object.fromEntries(
      [...names].map((name) => [name, { value: exampleOf(components, components.get(name), name) }]),
    ),
    ...Object.fromEntries([...codes].map((code) => [code, { value: refusalOf(code) }])),
  }
}

function refusalOf(code: ProblemCode): object {
  return { error: { code: publicCode(code), message: PROBLEMS[code].message, details: null } }
}

function titleOf(schema: TSchema): string | null {
  return 'title' in schema && typeof schema.title === 'string' ? schema.title : null
}

const BYTES = { 'application/octet-stream': { schema: {}, example: 'a,b\n1,2\n' } }
const EVENTS_EXAMPLE = `id: AQEAAAAAAAAAKgAAAAAAAAA=\nevent: log\ndata: {"source":"stdout","ts":"${EXAMPLE_INSTANT}","text":"ready\\n"}\n\n`
const RETRY_AFTER = { 'Retry-After': { $ref: '#/components/headers/RetryAfter' } }

/**
 * Renders a reply of Server-Sent Events. OpenAPI 3.1 has no description for such a stream: some tools take the schema for
 * that of the text, others for that of each event. So it accepts anything, and `x-event-data` is the schema of the events' data.
 */
function renderEvents(data: TSchema, components: Components): object {
  return {
    'text/event-stream': {
      schema: {},
      example: EVENTS_EXAMPLE,
      'x-event-data': renderSchema(data, components),
    },
  }
}

function renderParameters(schema: TSchema, location: 'path' | 'query' | 'header', components: Components): object[] {
  return Object.entries(propertiesOf(schema)).map(([name, property]) => {
    const key = `${location}.${name}`
    const { description, examples, ...rest } = Object(
      documentProperty(components, key, Object(renderSchema(property, components))),
    )
    return {
      name,
      in: location,
      required: location === 'path' || (location === 'header' && requiredOf(schema).includes(name)),
      description,
      schema: rest,
      example: examples[0],
    }
  })
}

function requiredOf(schema: TSchema): readonly unknown[] {
  return 'required' in schema && Array.isArray(schema.required) ? schema.required : []
}

function renderProblems(operation: Operation, components: Components): object {
  const byStatus = new Map<number, ProblemCode[]>()
  for (const code of problemsOf(operation)) {
    const { status } = PROBLEMS[code]
    byStatus.set(status, [...(byStatus.get(status) ?? []), code])
  }
  return Object.fromEntries(
    [...byStatus]
      .toSorted(([a], [b]) => a - b)
      .map(([status, codes]) => [
        status,
        {
          description: codes.map((code) => `\`${publicCode(code)}\``).join(', '),
          headers:
            status === 429 || status === 503 || codes.includes('idempotency_key_in_use')
              ? { ...COMMON_HEADERS, ...RETRY_AFTER }
              : COMMON_HEADERS,
          content: { 'application/json': { schema: renderSchema(ErrorReply, components), examples: referTo(codes) } },
        },
      ]),
  )
}

function propertiesOf(schema: TSchema): Record<string, Record<string, unknown>> {
  if (!('properties' in schema) || !isRecord(schema.properties)) return {}
  return Object.fromEntries(
    Object.entries(schema.properties).filter((entry): entry is [string, Record<string, unknown>] => isRecord(entry[1])),
  )
}
