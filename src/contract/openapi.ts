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
import { OPERATIONS } from './operations.ts'

/** The version of the API. */
const API_VERSION = '0.1.0'

/** Renders the OpenAPI 3.1 document of the API. The document depends only on the table of operations. */
export function renderDocument(): object {
  const components = new Map<string, unknown>()
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
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '/' }],
    security: [{ api_key: [] }],
    tags: [...new Set(Object.values(OPERATIONS).map(({ tag }) => tag))].map((name) => ({ name })),
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
      schemas: Object.fromEntries([...components].toSorted(([a], [b]) => (a < b ? -1 : 1))),
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

type Components = Map<string, unknown>

function renderOperation(operation: Operation, components: Components): object {
  const { id, tag, summary, description, params, query, headers, body, takes, reply, access } = operation
  const hasBody = Object.keys(propertiesOf(body)).length > 0
  return {
    operationId: id,
    tags: [tag],
    summary,
    ...(description === undefined ? {} : { description }),
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
            content: { 'application/json': { schema: render(body, components) } },
          },
        }
      : {}),
    ...(takes === 'bytes' ? { requestBody: { required: true, content: BYTES } } : {}),
    responses: {
      [reply.status]: {
        description: reply.description,
        headers: replyHeaders(operation),
        ...(reply.kind === 'json'
          ? { content: { 'application/json': { schema: render(reply.schema, components) } } }
          : {}),
        ...(reply.kind === 'bytes' ? { content: BYTES } : {}),
        ...(reply.kind === 'events' ? { content: renderEvents(reply.schema, components) } : {}),
        ...(reply.kind === 'text' ? { content: { 'text/plain': { schema: { type: 'string' } } } } : {}),
      },
      ...(hasETag(operation) && operation.method === 'GET' ? NOT_MODIFIED : {}),
      ...renderProblems(operation, components),
    },
  }
}

const BYTES = { 'application/octet-stream': { schema: {} } }
const RETRY_AFTER = { 'Retry-After': { $ref: '#/components/headers/RetryAfter' } }

/**
 * Renders a reply of Server-Sent Events. OpenAPI 3.1 describes such a stream only as text, so `x-event-data` contains
 * the schema of the events' data.
 */
function renderEvents(data: TSchema, components: Components): object {
  return { 'text/event-stream': { schema: { type: 'string' }, 'x-event-data': render(data, components) } }
}

function renderParameters(schema: TSchema, location: 'path' | 'query' | 'header', components: Components): object[] {
  return Object.entries(propertiesOf(schema)).map(([name, property]) => {
    const { description, ...rest } = property
    return {
      name,
      in: location,
      required: location === 'path' || (location === 'header' && requiredOf(schema).includes(name)),
      ...(typeof description === 'string' ? { description } : {}),
      schema: render(rest, components),
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
          content: { 'application/json': { schema: render(ErrorReply, components) } },
        },
      ]),
  )
}

/**
 * Renders a schema for the document: a nested schema with a title becomes a reference to a component. `discriminator`
 * is left out, because OpenAPI defines it only for variants that are components.
 */
function render(schema: unknown, components: Components): unknown {
  if (Array.isArray(schema)) return schema.map((item) => render(item, components))
  if (!isRecord(schema)) return schema
  const { title } = schema
  const keywords = Object.entries(schema).filter(
    ([key]) => (key !== 'title' || typeof title !== 'string') && key !== 'discriminator',
  )
  const rendered = Object.fromEntries(keywords.map(([key, value]) => [key, render(value, components)]))
  if (typeof title !== 'string') return rendered
  const known = components.get(title)
  if (known !== undefined && JSON.stringify(known) !== JSON.stringify(rendered))
    throw new Error(`two schemas have the title ${title}`)
  components.set(title, rendered)
  return { $ref: `#/components/schemas/${title}` }
}

function propertiesOf(schema: TSchema): Record<string, Record<string, unknown>> {
  if (!('properties' in schema) || !isRecord(schema.properties)) return {}
  return Object.fromEntries(
    Object.entries(schema.properties).filter((entry): entry is [string, Record<string, unknown>] => isRecord(entry[1])),
  )
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
