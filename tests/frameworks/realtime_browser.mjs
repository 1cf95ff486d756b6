// OpenAI's JavaScript client in a page: bundled by esbuild, `await talk(baseURL, model)` returns what it found.
import OpenAI from "openai";
import { OpenAIRealtimeWebSocket } from "openai/realtime/websocket";

globalThis.talk = async (baseURL, model) => {
  const client = new OpenAI({ baseURL, apiKey: "unused", dangerouslyAllowBrowser: true });
  const realtime = await OpenAIRealtimeWebSocket.create(client, { model, dangerouslyAllowBrowser: true });
  let text = "";
  realtime.on("response.output_text.delta", (event) => (text += event.delta));
  realtime.on("session.created", () => {
    realtime.send({ type: "session.update", session: { type: "realtime", instructions: "Be a pirate." } });
    realtime.send({ type: "conversation.item.create", item: { type: "message", role: "user", content: [{ type: "input_text", text: "Hi" }] } });
    realtime.send({ type: "response.create" });
  });
  const { response } = await new Promise((yes, no) => {
    realtime.on("response.done", yes);
    realtime.on("error", no);
  });
  realtime.close();
  return { status: response.status, text };
};
